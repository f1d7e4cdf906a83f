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
from dataclasses import dataclass, replace

from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix import confirmed
from starling.gossip.mix.confirmed import LEAST, REMEMBERED
from starling.gossip.vector import products, squares, zeros

LIMIT = 1.0  # with any optimiser but sgd, how many times its noise is held against a coordinate of c (decision 80)
STANDARD_ERRORS = 3.0  # that are subtracted from the share of c found in later gradients (decision 82)
_FARTHEST = 1e100


@dataclass(frozen=True, slots=True)
class Gradients:
    """A correction, and the gradients it has to learn from."""

    c: Tensor  # (…, d) sum of the flows
    mean: Tensor  # (…, d) of the raw gradients since the last exchange
    spread: Tensor  # (…, 1) Σ‖g − mean‖² of these
    count: Tensor  # (…, 1) how many, in the dtype of c
    used: Tensor  # (…, 1) bool; an exchange has followed: the next gradient begins a new mean
    averaged: Tensor  # (…, 1) number of gradients in the mean that the last exchange used, in the dtype of c
    power: Tensor  # (…, d) running mean of g², from the first that is not 0, in the dtype of c or bfloat16; (…, 0) where unused
    dot: Tensor  # (…, 1) running mean from 0 of ⟨g, e⟩, over gradients later than c; e is the `correction`
    dot_squared: Tensor  # (…, 1) that of ⟨g, e⟩²
    norm_squared: Tensor  # (…, 1) that of ‖e‖²
    coincidence: Tensor  # (…, 1) that of the variance of ⟨mean − e, e⟩ if its terms had signs by chance
    weight: Tensor  # (…, 1) that of 1, by which the four are divided for means without a bias towards 0


def start(x: Tensor, *, limited: bool = False, coarse: bool = False) -> Gradients:
    """No correction, no gradients. `coarse`: the power of gradients, which a `limit` needs, in bfloat16."""
    zero = torch.zeros_like(x[..., :1])
    power = zeros(x if limited else x[..., :0], torch.bfloat16 if coarse else None)
    means = (zero.clone() for _ in range(5))
    return Gradients(zeros(x), zeros(x), zero, zero.clone(), zero.bool(), zero.clone(), power, *means)


def observe(state: Gradients, gradient: Tensor) -> Gradients:
    """One more raw gradient (…, d), by Welford's update, whose spread is never negative."""
    before = torch.where(state.used, 0.0, state.count)
    count, spread = before + 1.0, torch.where(state.used, 0.0, state.spread)
    delta = torch.where(state.used, gradient, gradient - state.mean)
    power = state.power
    if power.shape[-1]:
        square, old = gradient.square(), power.to(gradient.dtype)
        moved = torch.where(old == 0.0, square, REMEMBERED * old + (1.0 - REMEMBERED) * square)
        power = moved.to(power.dtype)
    return replace(
        state, mean=gradient - delta * (before / count), spread=spread + delta.square().sum(-1, keepdim=True) * (before / count),
        count=count, used=torch.zeros_like(state.used), averaged=torch.where(state.used, state.count, state.averaged), power=power,
    )  # fmt: skip


def corrected(state: Gradients, gradient: Tensor, limit: float) -> tuple[Tensor, Gradients]:
    """The gradient (…, d) less the `correction` as far as it is to be trusted, and the state that has compared the two."""
    e = correction(state, limit)
    if not state.power.shape[-1]:
        return gradient - e, state
    share = trust(state)
    dot = (gradient * e).sum(-1, keepdim=True)
    coincidence = ((state.mean - e) * e).square().sum(-1, keepdim=True)
    norm_squared = e.square().sum(-1, keepdim=True)
    return gradient - e * share, confirmed.compared(state, dot, norm_squared, coincidence=coincidence)


def trust(state: Gradients) -> Tensor:
    """Share of the `correction` that counts, (…, 1) in [0, 1] (`gossip.mix.confirmed`).

    Beside the error of batches stands that of how e happens to lie to what all nodes' gradients have in common, which is the same for all
    gradients of a round.
    """
    rounds = (confirmed.equivalent(state) / state.averaged.clamp_min(1.0)).clamp_min(1.0)
    return confirmed.confirmed_share(
        state, STANDARD_ERRORS, state.coincidence / (state.weight.clamp_min(LEAST) * rounds)
    )


def correction(state: Gradients, limit: float) -> Tensor:
    """What counts of c (…, d): by coordinate c³/(c² + limit²·noise), where the power of gradients is kept; `limit` >= 0.

    The noise is that of a mean of as many gradients as exchanges used last, if each is all noise.
    """
    if not state.power.shape[-1]:
        return state.c
    square = state.c.square()
    noise = state.power * (limit * limit / state.averaged.clamp_min(1.0))
    return state.c * (square / (square + noise).clamp_min(LEAST))


def mixed(state: Gradients) -> Gradients:
    """An exchange, or a round of them, is over. A single gradient waits for a second, without which its noise is unknown."""
    return replace(state, used=state.used | (state.count >= 2.0))


def direction(state: Gradients) -> tuple[Tensor, Tensor]:
    """Z (…, d), and N (…, 1), infinite where unknown or too large for its type; where it is finite, z is."""
    noise = state.spread / (state.count * (state.count - 1.0))
    known = (state.count >= 2.0) & torch.isfinite(noise)
    return state.mean - state.c, torch.where(known, noise, math.inf)


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
