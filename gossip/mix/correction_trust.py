"""How much of a correction later gradients confirm, or refute.

A local step's raw gradient g is later than the correction e that it is stepped along with. β = ⟨g, e⟩/‖e‖² is 1 where e is what sources of
data differ by, and 0 where it is the noise of earlier batches. With the true difference δ, ‖δ − τe‖² <= ‖δ‖² for τ up to 2β: the share of
e that counts is the largest that is no farther from δ than no correction is, by a β that is some of its standard errors less or more than
what was seen: less where a correction has to be shown to be right, more where it counts until it is shown to be wrong.

Numbers are those of `starling.gossip.mix.rows`.

Shapes: w coordinates of a block.
"""

from typing import NamedTuple

from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.rows import Number, Rows

REMEMBERED = 0.98  # share of a running mean that a local step keeps
LEAST = 1e-30  # a square that is as good as 0
_A_SECOND = 0.5  # `equivalent` is 1 with one gradient and 2 with two


class Compared(NamedTuple):
    """What was seen of a correction and of gradients later than it: running means from 0."""

    dot: Number = 0.0  # of ⟨g, e⟩
    dot_squared: Number = 0.0  # of ⟨g, e⟩²
    norm_squared: Number = 0.0  # of ‖e‖²
    coincidence: Number = 0.0  # of the variance of ⟨g − e, e⟩ if its terms had signs by chance
    weight: Number = 0.0  # of 1, by which the others are divided for means without a bias towards 0


def compared(rows: Rows, seen: Compared, dot: Number, norm_squared: Number, coincidence: Number) -> Compared:
    """Return the running means with one more gradient; one whose products are not finite is left out."""
    new = (dot, dot * dot, norm_squared, coincidence, 1.0)
    known = rows.finite(new[1] + norm_squared + coincidence)
    return Compared(
        *(
            rows.pick(known, REMEMBERED * before + (1.0 - REMEMBERED) * each, before)
            for before, each in zip(seen, new, strict=True)
        )
    )


class Comparison:
    """Products of one more gradient of each row and of its correction, summed block by block."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._dot: Number = 0.0
        self._norm_squared: Number = 0.0
        self._coincidence: Number = 0.0

    def add(self, g: Tensor, e: Tensor, common: Tensor, scratch: Tensor) -> None:
        """Add the products of a block: gradients, corrections, and what stands for all gradients, (…, w) each; `scratch` is overwritten."""
        rest, rows = torch.sub(common, e, out=scratch).mul_(e), self._rows
        self._dot += rows.dot(g, e)
        self._norm_squared += rows.dot(e, e)
        self._coincidence += rows.dot(rest, rest)

    def after(self, seen: Compared, times: int) -> Compared:
        """Return the running means with these products, which stand for `times` as many blocks."""
        return compared(self._rows, seen, times * self._dot, times * self._norm_squared, times * self._coincidence)


def equivalent(rows: Rows, seen: Compared) -> Number:
    """Return the number of gradients of equal weight whose mean has the variance of these."""
    weight = rows.at_least(seen.weight, LEAST)
    return (1.0 + REMEMBERED) / (1.0 - REMEMBERED) * weight / (2.0 - weight)


def confirmed_share(rows: Rows, seen: Compared, errors: float, besides: Number = 0.0) -> Number:
    """Return the share in [0, 1] that counts where it has to be shown right; 0 before there is a gradient.

    β is so many standard errors less than seen: of that of batches, and of a variance `besides` of ⟨g, e⟩.
    """
    return _share(rows, seen, -errors, _variance(rows, seen) / rows.at_least(equivalent(rows, seen), 1.0) + besides)


def unrefuted_share(rows: Rows, seen: Compared, errors: float, besides: Number = 0.0) -> Number:
    """Return the share in [0, 1] that counts until it is shown wrong; 1 until there are two gradients.

    β is so many standard errors more than seen: of that of batches, and of a variance `besides` of ⟨g, e⟩.
    """
    others = equivalent(rows, seen) - 1.0
    found = _share(rows, seen, errors, _variance(rows, seen) / rows.at_least(others, LEAST) + besides)
    return rows.pick(others < _A_SECOND, 1.0, found)


def mean_coincidence(rows: Rows, seen: Compared) -> Number:
    """Return the mean of `coincidence`."""
    return seen.coincidence / rows.at_least(seen.weight, LEAST)


def _variance(rows: Rows, seen: Compared) -> Number:
    """Return that of ⟨g, e⟩ of single gradients."""
    weight = rows.at_least(seen.weight, LEAST)
    mean = seen.dot / weight
    return rows.at_least(seen.dot_squared / weight - mean * mean, 0.0)


def _share(rows: Rows, seen: Compared, errors: float, variance: Number) -> Number:
    """Return 2β in [0, 1], β so many errors more than seen."""
    weight = rows.at_least(seen.weight, LEAST)
    dot = seen.dot / weight + errors * rows.root(variance)
    return rows.at_most(rows.at_least(2.0 * dot * weight / rows.at_least(seen.norm_squared, LEAST), 0.0), 1.0)
