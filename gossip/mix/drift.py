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
    Products,
    compared,
    confirmed_share,
    products,
)
from starling.gossip.mix.difference import corrected
from starling.gossip.mix.rows import ONE, Number, Rows, blocks, numbers, rows_of, written
from starling.gossip.vector import products as inner_products
from starling.gossip.vector import squares, zeros

LIMIT = 1.0  # with any optimiser but sgd, how many times its noise is held against a coordinate of c (decision 80)
STANDARD_ERRORS = 3.0  # that are subtracted from the share of c found in later gradients (decision 82)
_FARTHEST = 1e100
_MOST = 1e36  # of a square: what is larger is as good as infinite, and can be calculated with


class Counts(NamedTuple):
    """What is known beside a correction: of its flows, and of the gradients that a mean was made of."""

    some: Number = 0.0  # 0: there never was a flow, c is zero; else 1
    spread: Number = 0.0  # Σ‖g − mean‖²
    count: Number = 0.0  # how many
    used: Number = 0.0  # 1: an exchange has followed, and the next gradient begins a new mean; else 0
    averaged: Number = 0.0  # number of gradients in the mean that the last exchange used


_COUNTS, _SPREAD, _COUNT, _USED = len(Counts()), 1, 2, 3


@dataclass(frozen=True, slots=True)
class Gradients:
    """A correction, and the gradients it has to learn from."""

    c: Tensor  # (…, d) sum of the flows
    mean: Tensor  # (…, d) of the raw gradients since the last exchange
    power: Tensor  # (…, d) running mean of g², from the first that is not 0, in the dtype of c or bfloat16; (…, 0) where unused
    known: Tensor  # (…, n) `Counts`, then what later gradients say of the filtered correction (`Compared`), if judged


class _Means:
    """One more raw gradient of each row, added to the mean of those before, block by block."""

    def __init__(self, rows: Rows, counts: Counts, like: Tensor) -> None:
        self._rows, self._some = rows, counts.some
        first = counts.used > 0.0
        self._before = rows.pick(first, 0.0, counts.count)
        self._spread = rows.pick(first, 0.0, counts.spread)
        self.averaged = rows.pick(first, counts.count, counts.averaged)
        self._all_first = not rows.any(self._before)
        self._share = torch.as_tensor(1.0 / (self._before + 1.0), dtype=like.dtype, device=like.device)

    def see(self, g: Tensor, mean: Tensor, scratch: Tensor) -> None:
        """Add a block of gradients (…, w) to their mean, in place, by Welford's update; `scratch` is overwritten."""
        if self._all_first:
            mean.copy_(g)
            return
        delta, before = torch.sub(g, mean, out=scratch), self._before
        self._spread += self._rows.number(torch.linalg.vecdot(delta, delta)) * (before / (before + 1.0))
        mean.addcmul_(delta, self._share)

    def counts(self) -> Counts:
        """Return what is known of the gradients now."""
        return Counts(self._some, self._spread, self._before + 1.0, 0.0, self.averaged)


@dataclass(frozen=True, slots=True)
class DriftInFull:
    """Local steps along g − c, c in full, with a mean of raw gradients."""

    constant: ClassVar[bool] = False

    def start(self, x: Tensor) -> Gradients:
        """Return no correction, no gradients."""
        return Gradients(zeros(x), zeros(x), x[..., :0].clone(), numbers(x, _COUNTS))

    def correct(self, state: Gradients, gradient: Tensor) -> tuple[Tensor, Gradients]:
        """Return g − c, and the state that has seen g."""
        return self.correct_in_place(replace(state, mean=state.mean.clone()), gradient.clone(), None, rows_of(gradient))

    def correct_in_place(
        self, state: Gradients, gradient: Tensor, step: int | None, rows: Rows = ONE
    ) -> tuple[Tensor, Gradients]:
        """Return the same in the place of g; the mean changes in place."""
        counts = Counts(*rows.read(state.known))
        means, corrects = _Means(rows, counts, gradient), rows.any(counts.some)
        for _, (scratch,), (g, mean, c) in blocks(None, 1, gradient, state.mean, state.c):
            means.see(g, mean, scratch)
            if corrects:
                g.sub_(c)
        return gradient, Gradients(state.c, state.mean, state.power, written(means.counts(), state.known))

    def corrected(self, state: Gradients, flows: Tensor) -> Gradients:
        """Return the state with this sum of flows."""
        return replace(state, c=flows, known=corrected(state.known, flows))

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
        power = zeros(x, torch.bfloat16 if self.coarse else None)
        return Gradients(zeros(x), zeros(x), power, numbers(x, _COUNTS + len(Compared())))

    def correct(self, state: Gradients, gradient: Tensor) -> tuple[Tensor, Gradients]:
        """Return g − τe, and the state that has seen g and compared the two in all blocks."""
        state = replace(state, mean=state.mean.clone(), power=state.power.clone())
        return self.correct_in_place(state, gradient.clone(), None, rows_of(gradient))

    def correct_in_place(
        self, state: Gradients, gradient: Tensor, step: int | None, rows: Rows = ONE
    ) -> tuple[Tensor, Gradients]:
        """Return the same in the place of g; mean and power change in place. `step` None: all blocks are compared."""
        known = rows.read(state.known)
        counts, seen, new = Counts(*known[:_COUNTS]), Compared(*known[_COUNTS:]), Products()
        means, corrects = _Means(rows, counts, gradient), rows.any(counts.some)
        share = confirmed_share(rows, seen, STANDARD_ERRORS, means.averaged)
        trusted = rows.any(share)
        held = self.noise * self.noise / rows.at_least(means.averaged, 1.0)
        taken, held = (torch.as_tensor(each, dtype=gradient.dtype, device=gradient.device) for each in (share, held))
        vectors = (gradient, state.mean, state.c, state.power)
        for times, scratch, (g, mean, c, power) in blocks(None if trusted else step, 4, *vectors):
            means.see(g, mean, scratch[0])
            if not times:
                continue
            noise = _noise(power, g, held, REMEMBERED**times, scratch[1:])
            if corrects:
                e = torch.mul(c, c, out=scratch[1])
                e.div_(noise.add_(e).clamp_min_(LEAST)).mul_(c)  # c³/(c² + noise)
                new = products(rows, new, times, g, e, mean, scratch[0])
                if trusted:
                    g.addcmul_(e, taken, value=-1.0)
        after = written((*means.counts(), *compared(rows, seen, new)), state.known)
        return gradient, Gradients(state.c, state.mean, state.power, after)

    def corrected(self, state: Gradients, flows: Tensor) -> Gradients:
        """Return the state with this sum of flows."""
        return replace(state, c=flows, known=corrected(state.known, flows))

    def mixed(self, state: Gradients) -> Gradients:
        """Return the state after an exchange, as `mixed`."""
        return mixed(state)


def _noise(power: Tensor, g: Tensor, held: Tensor, remembered: float, scratch: Sequence[Tensor]) -> Tensor:
    """Add gradients (…, w) to their running mean of squares, in place -> what is held against squares of c, in the second of `scratch`.

    The first gradient that is not 0 is the mean; one more leaves the share `remembered` of it. `held` (…, 1) is noise²/n of a mean of as
    many gradients n as exchanges used last, if each is all noise. Three of `scratch` (…, w) are overwritten.
    """
    square, noise, old = scratch
    torch.mul(g, g, out=square).clamp_max_(_MOST)
    old = power if power.dtype == g.dtype else old.copy_(power)
    torch.sign(old, out=noise).mul_(remembered)
    torch.lerp(square, old, noise, out=old)
    if old is not power:
        power.copy_(old)
    return torch.mul(old, held, out=noise)


def mixed(state: Gradients) -> Gradients:
    """An exchange, or a round of them, is over. A single gradient waits for a second, without which its noise is unknown."""
    known = state.known.clone()
    known[..., _USED] = torch.maximum(known[..., _USED], (known[..., _COUNT] >= 2.0).to(known))
    return replace(state, known=known)


def direction(state: Gradients) -> tuple[Tensor, Tensor]:
    """Z (…, d), and N (…, 1), infinite where unknown or too large for its type; where it is finite, z is."""
    spread, count = (state.known[..., at : at + 1] for at in (_SPREAD, _COUNT))
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
    along, power, squared = inner_products(flow, u)
    if power == 0.0:
        return 0.0
    room = max(reach * reach - rest, squared) * (1.0 + slack) - squared
    most = (along + math.sqrt(along * along + power * room)) / power
    return min(weight, most) if most >= 0.0 else 0.0  # not a number: 0
