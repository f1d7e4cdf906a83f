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
_MOST_EQUIVALENT = (1.0 + REMEMBERED) / (1.0 - REMEMBERED)
_A_SECOND = 0.5  # `equivalent` is 1 with one gradient and 2 with two


class Compared(NamedTuple):
    """What was seen of a correction and of gradients later than it: running means from 0."""

    dot: Number = 0.0  # of ⟨g, e⟩
    dot_squared: Number = 0.0  # of ⟨g, e⟩²
    norm_squared: Number = 0.0  # of ‖e‖²
    coincidence: Number = 0.0  # of the variance of ⟨g − e, e⟩ if its terms had signs by chance
    weight: Number = 0.0  # of 1, by which the others are divided for means without a bias towards 0


class Products(NamedTuple):
    """Those of a gradient and a correction."""

    dot: Number = 0.0
    norm_squared: Number = 0.0
    coincidence: Number = 0.0


def products(
    rows: Rows, so_far: Products, times: int, g: Tensor, e: Tensor, common: Tensor, scratch: Tensor
) -> Products:
    """Return products with those of a block, `times` over: gradients, corrections, and what stands for all gradients, (…, w) each.

    `scratch` is overwritten.
    """
    rest, dot = torch.sub(common, e, out=scratch).mul_(e), torch.linalg.vecdot
    return Products(
        so_far.dot + times * rows.number(dot(g, e)), so_far.norm_squared + times * rows.number(dot(e, e)),
        so_far.coincidence + times * rows.number(dot(rest, rest)),
    )  # fmt: skip


def compared(rows: Rows, seen: Compared, new: Products) -> Compared:
    """Return the running means with one more gradient; one whose products are not finite is left out."""
    dot, norm_squared, coincidence = new
    known, each = rows.finite(dot * dot + norm_squared + coincidence), (dot, dot * dot, norm_squared, coincidence, 1.0)
    after = [REMEMBERED * before + (1.0 - REMEMBERED) * now for before, now in zip(seen, each, strict=True)]
    return Compared(*(rows.pick(known, now, before) for now, before in zip(after, seen, strict=True)))


def confirmed_share(rows: Rows, seen: Compared, errors: float, rounds_of: Number = 1.0) -> Number:
    """Return the share in [0, 1] that counts where it has to be shown right; 0 before there is a gradient.

    β is so many standard errors less than seen: of that of batches, and of coincidence, which is the same for `rounds_of` gradients.
    """
    gradients = equivalent(rows, seen)
    rounds = rows.at_least(gradients / rows.at_least(rounds_of, 1.0), 1.0)
    return _share(rows, seen, -errors, rows.at_least(gradients, 1.0), rounds)


def unrefuted_share(rows: Rows, seen: Compared, errors: float) -> Number:
    """Return the share in [0, 1] that counts until it is shown wrong; 1 until there are two gradients.

    β is so many standard errors more than seen: of that of batches, and of coincidence, which is the same for all gradients.
    """
    others = equivalent(rows, seen) - 1.0
    return rows.pick(others < _A_SECOND, 1.0, _share(rows, seen, errors, rows.at_least(others, LEAST), 1.0))


def equivalent(rows: Rows, seen: Compared) -> Number:
    """Return the number of gradients of equal weight whose mean has the variance of these."""
    weight = rows.at_least(seen.weight, LEAST)
    return _MOST_EQUIVALENT * weight / (2.0 - weight)


def _share(rows: Rows, seen: Compared, errors: float, gradients: Number, rounds: Number) -> Number:
    """Return 2β in [0, 1], β so many errors more than seen in so many gradients, of as many rounds."""
    weight = rows.at_least(seen.weight, LEAST)
    mean = seen.dot / weight
    variance = (
        rows.at_least(seen.dot_squared / weight - mean * mean, 0.0) / gradients + seen.coincidence / weight / rounds
    )
    dot = mean + errors * rows.root(variance)
    return rows.at_most(rows.at_least(2.0 * dot * weight / rows.at_least(seen.norm_squared, LEAST), 0.0), 1.0)
