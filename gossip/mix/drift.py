"""Drift tracking: K-GT's correction as flows of edges, moved by the difference of mean gradients and gated by their noise.

    node     mean, N      of the raw gradients of the local steps since the last exchange; N is the noise power of that mean
             z = mean − c with the correction c of now: later exchanges of a round average, they do not count twice
    i → j    C(z_i[S]), N_i
    j → i    u = C(z_j[S] − decoded z_i[S]),  w' = θ · max(0, 1 − (|S|/d)·(N_i + N_j)/‖u‖²)
    both     c_ij[S] −= w'·u at i and += at j, from the same bytes

With a `drift_reach` each end has a reach, so many times ‖mean‖, and w' is the largest that leaves ‖c_ij‖ within the smaller of both, or no
longer than it was: a liar gets no further, whatever it claims of itself.

`starling.gossip.mix.directions` has the payloads. Without two local steps N is infinite and w' = 0.

A round without local steps uses the mean of the last one that had some: with the c of now it averages what is left, whatever the age.

An optimiser that divides by the size of gradients, as adamw does, makes nearly full steps along a correction that is no louder than the
noise of the means it was made of, in the same direction until the next exchange. So with all but sgd each coordinate of c counts by its
share above that noise (Wiener's), and all of them as far as gradients that c does not know yet confirm them (`trust`). Flows keep all of c.

K-GT (Liu et al. 2023, arXiv:2301.01313) moves one vector per node by the same differences; here each edge keeps its part, so that it can
be deleted. The gate is ours: at rest u is the noise of batches, and ungated flows walk at random.

Shapes: d parameters, k of one exchange; "…" as in `starling.gossip.api`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.correction_trust import (
    LEAST,
    REMEMBERED,
    Compared,
    Comparison,
    confirmed_share,
    equivalent,
    mean_coincidence,
)
from starling.gossip.mix.difference import moved
from starling.gossip.mix.rows import Number, Rows, any_of, blocks, cut, numbers, parts, rows_of
from starling.gossip.vector import products, squares, zeros

LIMIT = 1.0  # with any optimiser but sgd, how many times its noise is held against a coordinate of c (decision 80)
STANDARD_ERRORS = 3.0  # that are subtracted from the share of c found in later gradients (decision 82)
_FARTHEST = 1e100
_MOST = 1e36  # of a square: what is larger is as good as infinite, and can be calculated with


class Counts(NamedTuple):
    """What is known of the gradients that a mean was made of."""

    spread: Number = 0.0  # Σ‖g − mean‖²
    count: Number = 0.0  # how many
    used: Number = 0.0  # 1: an exchange has followed, and the next gradient begins a new mean; else 0
    averaged: Number = 0.0  # number of gradients in the mean that the last exchange used


@dataclass(frozen=True, slots=True)
class Gradients:
    """A correction, and the gradients it has to learn from."""

    c: Tensor  # (…, d) sum of the flows
    some: Tensor  # (…, 1) bool; false: there never was a flow, c is zero
    mean: Tensor  # (…, d) of the raw gradients since the last exchange
    power: Tensor  # (…, d) running mean of g², from the first that is not 0, in the dtype of c or bfloat16; (…, 0) where unused
    known: Tensor  # (…, n) `Counts` of these, then `Compared` of the filtered correction, where it is judged


_COUNTS = len(Counts())


def begun(x: Tensor, power: Tensor, count: int) -> Gradients:
    """Return the state of models (…, d) without a correction, and without gradients, with `count` numbers known of each."""
    return Gradients(zeros(x), torch.zeros_like(x[..., :1], dtype=torch.bool), zeros(x), power, numbers(x, count))


class _Means:
    """One more raw gradient of each row, added to the mean of those before, block by block."""

    def __init__(self, rows: Rows, counts: Counts) -> None:
        self._rows = rows
        first = counts.used > 0.0
        self._before = rows.pick(first, 0.0, counts.count)
        self._spread = rows.pick(first, 0.0, counts.spread)
        self.averaged = rows.pick(first, counts.count, counts.averaged)
        self._all_first = not rows.any(self._before)

    def see(self, g: Tensor, mean: Tensor, scratch: Tensor) -> None:
        """Add a block of gradients (…, w) to their mean, in place, by Welford's update; `scratch` is overwritten."""
        if self._all_first:
            mean.copy_(g)
            return
        delta, before = torch.sub(g, mean, out=scratch), self._before
        self._spread += self._rows.dot(delta, delta) * (before / (before + 1.0))
        self._rows.add(mean, delta, 1.0 / (before + 1.0))

    def counts(self) -> Counts:
        """Return what is known of the gradients now."""
        return Counts(self._spread, self._before + 1.0, 0.0, self.averaged)


@dataclass(frozen=True, slots=True)
class DriftInFull:
    """Local steps along g − c, c in full, with a mean of raw gradients."""

    constant: ClassVar[bool] = False

    def start(self, x: Tensor) -> Gradients:
        """Return no correction, no gradients."""
        return begun(x, x[..., :0].clone(), _COUNTS)

    def correct(self, state: Gradients, gradient: Tensor) -> tuple[Tensor, Gradients]:
        """Return g − c, and the state that has seen g."""
        return self.correct_in_place(replace(state, mean=state.mean.clone()), gradient.clone(), 0)

    def correct_in_place(self, state: Gradients, gradient: Tensor, step: int) -> tuple[Tensor, Gradients]:
        """Return the same in the place of g; the mean changes in place."""
        rows, corrects = rows_of(gradient), any_of(state.some)
        means = _Means(rows, Counts(*rows.read(state.known)))
        length, _, _ = blocks(gradient, None)
        scratch = torch.empty_like(gradient[..., :length])
        pieces = (parts(each, length) for each in (gradient, state.mean, state.c))
        for g, mean, c in zip(*pieces, strict=True):
            means.see(g, mean, cut(scratch, g))
            if corrects:
                g.sub_(c)
        known = rows.written(means.counts(), state.known)
        return gradient, Gradients(state.c, state.some, state.mean, state.power, known)

    def corrected(self, state: Gradients, flows: Tensor) -> Gradients:
        """Return the state with this sum of flows."""
        return replace(state, c=flows, some=moved(state.some, flows))

    def mixed(self, state: Gradients) -> Gradients:
        """Return the state after an exchange, as `mixed`."""
        return mixed(state)


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Local steps along g − τe, e what is louder than noise of c and τ how far later gradients confirm it (decisions 80, 82, 83, 85).

    While nothing is confirmed, only blocks whose turn it is are compared, and only of those the power of gradients is seen.
    """

    noise: float  # how many times its noise is held against a coordinate of c, > 0
    coarse: bool = False  # the power of gradients is kept in bfloat16
    constant: ClassVar[bool] = False

    def start(self, x: Tensor) -> Gradients:
        """Return no correction, no gradients."""
        return begun(x, zeros(x, torch.bfloat16 if self.coarse else None), _COUNTS + len(Compared()))

    def correct(self, state: Gradients, gradient: Tensor) -> tuple[Tensor, Gradients]:
        """Return g − τe, and the state that has seen g and compared the two in all blocks."""
        return self._corrected(
            replace(state, mean=state.mean.clone(), power=state.power.clone()), gradient.clone(), None
        )

    def correct_in_place(self, state: Gradients, gradient: Tensor, step: int) -> tuple[Tensor, Gradients]:
        """Return the same in the place of g; mean and power change in place."""
        return self._corrected(state, gradient, step)

    def _corrected(self, state: Gradients, gradient: Tensor, step: int | None) -> tuple[Tensor, Gradients]:
        rows, corrects = rows_of(gradient), any_of(state.some)
        known = rows.read(state.known)
        means, seen = _Means(rows, Counts(*known[:_COUNTS])), Compared(*known[_COUNTS:])
        taken = -trust(rows, means.averaged, seen)
        trusted = rows.any(taken)
        length, due, times = blocks(gradient, None if trusted else step)
        scratch = torch.empty((4, *gradient.shape[:-1], length), dtype=gradient.dtype, device=gradient.device).unbind()
        held = rows.factor(self.noise * self.noise / rows.at_least(means.averaged, 1.0), gradient)
        filtered, comparison = _Filter(held, scratch, REMEMBERED**times), Comparison(rows)
        pieces = (parts(each, length) for each in (gradient, state.mean, state.c, state.power))
        for g, mean, c, power, compares in zip(*pieces, due, strict=True):
            spare = cut(scratch[-1], g)
            means.see(g, mean, spare)
            if not compares:
                continue
            filtered.see(power, g)
            if corrects:
                e = filtered.of(c)
                comparison.add(g, e, mean, spare)
                if trusted:
                    rows.add(g, e, taken)
        after = rows.written((*means.counts(), *comparison.after(seen, times)), state.known)
        return gradient, Gradients(state.c, state.some, state.mean, state.power, after)

    def corrected(self, state: Gradients, flows: Tensor) -> Gradients:
        """Return the state with this sum of flows."""
        return replace(state, c=flows, some=moved(state.some, flows))

    def mixed(self, state: Gradients) -> Gradients:
        """Return the state after an exchange, as `mixed`."""
        return mixed(state)


class _Filter:
    """What of a correction is louder than noise, block by block: by coordinate c³/(c² + noise²·power/n) (Wiener's).

    The noise is that of a mean of as many gradients n as exchanges used last, if each is all noise.
    """

    def __init__(self, held: float | Tensor, scratch: Sequence[Tensor], remembered: float) -> None:
        """`held` is noise²/n, a number or (…, 1). Three of `scratch` (…, w) are used. `remembered` is the share of a mean square that one
        more gradient leaves.
        """
        self._square, self._noise, self._old = scratch[:3]
        self._held, self._remembered = held, remembered

    def see(self, power: Tensor, g: Tensor) -> None:
        """Add gradients (…, w) to their running mean of squares, in place; the first that is not 0 is the mean."""
        square, noise = cut(self._square, g), cut(self._noise, g)
        old = power if power.dtype == g.dtype else cut(self._old, g).copy_(power)
        torch.mul(g, g, out=square).clamp_max_(_MOST)
        torch.sign(old, out=noise).mul_(self._remembered)
        torch.lerp(square, old, noise, out=old)
        if old is not power:
            power.copy_(old)
        torch.mul(old, self._held, out=noise)

    def of(self, c: Tensor) -> Tensor:
        """Return what counts of a block of c (…, w), after `see` of the same block; it is overwritten by the next."""
        e, noise = cut(self._square, c), cut(self._noise, c)
        torch.mul(c, c, out=e)
        return e.div_(noise.add_(e).clamp_min_(LEAST)).mul_(c)


def trust(rows: Rows, averaged: Number, seen: Compared) -> Number:
    """Return the share of the filtered correction that counts, in [0, 1]; exchanges used a mean of `averaged` gradients last.

    Beside the error of batches stands that of how e happens to lie to what all nodes' gradients have in common, which is the same for all
    gradients of a round.
    """
    rounds = rows.at_least(equivalent(rows, seen) / rows.at_least(averaged, 1.0), 1.0)
    return confirmed_share(rows, seen, STANDARD_ERRORS, mean_coincidence(rows, seen) / rounds)


def mixed(state: Gradients) -> Gradients:
    """An exchange, or a round of them, is over. A single gradient waits for a second, without which its noise is unknown."""
    known = state.known.clone()
    known[..., 2] = torch.maximum(known[..., 2], (known[..., 1] >= 2.0).to(known))
    return replace(state, known=known)


def direction(state: Gradients) -> tuple[Tensor, Tensor]:
    """Z (…, d), and N (…, 1), infinite where unknown or too large for its type; where it is finite, z is."""
    spread, count = state.known[..., :1], state.known[..., 1:2]
    noise = spread / (count * (count - 1.0))
    return state.mean - state.c, torch.where((count >= 2.0) & torch.isfinite(noise), noise, math.inf)


def gate(theta: float, ratio: float, noise: float, u: Tensor) -> float:
    """The w' in [0, theta] by which u (k,) moves flows; `noise` is N_i + N_j, perhaps infinite, and `ratio` |S|/d."""
    power = squares(u)
    return theta * max(0.0, 1.0 - ratio * noise / power) if power > 0.0 and noise < math.inf else 0.0


def reach(state: Gradients, most: float) -> Tensor:
    """(…, 1) float64, `most` times ‖mean‖; finite, if the noise is."""
    length = torch.linalg.vector_norm(state.mean, dim=-1, keepdim=True, dtype=torch.float64)
    far: Tensor = (most * length).clamp_max(_FARTHEST)
    return far


def within(weight: float, u: Tensor, flow: Tensor, rest: float, reach: float, slack: float = 0.0) -> float:
    """The largest w in [0, weight] with which the flow less w·u is no longer than `reach` >= 0, or than the flow was before.

    u and the flow (w,) are on the coordinates of an exchange, `rest` is Σ of the squares of the flow elsewhere, `slack` the share of the
    squared length by which another machine may have rounded. A u of 0 has no weight, as `gate` says.
    """
    if weight == 0.0 or reach == math.inf:
        return weight
    along, power, squared = products(flow, u)
    if power == 0.0:
        return 0.0
    room = max(reach * reach - rest, squared) * (1.0 + slack) - squared
    most = (along + math.sqrt(along * along + power * room)) / power
    return min(weight, most) if most >= 0.0 else 0.0  # not a number: 0
