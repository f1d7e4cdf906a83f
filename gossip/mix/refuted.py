"""How far later gradients refute a correction by differences of models (`starling.gossip.mix.confirmed`): for arrays, and in place.

Shapes: "…" as in `starling.gossip.api`; d parameters.
"""

from dataclasses import dataclass

from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix import confirmed
from starling.gossip.vector import stretches

ERRORS = 1.0  # standard errors in favour of a correction (decision 105)
BLOCK = 1 << 18
"""Coordinates of two vectors and one of scratch that fit a core's cache; with smaller blocks there are too many calls."""


@dataclass(frozen=True, slots=True)
class Correction:
    """c (…, d), the sum of a node's flows, and what later gradients say of it (`gossip.mix.confirmed`)."""

    c: Tensor
    dot: Tensor
    dot_squared: Tensor
    norm_squared: Tensor
    coincidence: Tensor
    weight: Tensor


def start(x: Tensor) -> Correction:
    """No correction."""
    return Correction(torch.zeros_like(x), *(torch.zeros_like(x[..., :1]) for _ in range(5)))


def corrected(state: Correction, gradient: Tensor, limit: float) -> tuple[Tensor, Correction]:
    """The gradient less as much of c as earlier gradients leave of it, at least 1 − limit, and the state that has compared the two."""
    c = state.c
    products = (gradient * c, c.square(), ((gradient - c) * c).square())
    dot, norm_squared, coincidence = (each.sum(-1, keepdim=True) for each in products)
    seen = confirmed.compared(state, dot, norm_squared, coincidence=coincidence)
    return torch.addcmul(gradient, _share(state, limit), c, value=-1.0), seen


def correct(state: Correction, gradient: Tensor, limit: float) -> tuple[Tensor, Correction]:
    """The same of one gradient (d,), in its place, reading memory once; sums are rounded otherwise."""
    share = float(_share(state, limit))
    scratch = gradient.new_empty(min(BLOCK, gradient.shape[-1]))
    dot, norm_squared, coincidence = (torch.zeros_like(state.dot) for _ in range(3))
    for part, _ in stretches(slice(None), gradient.shape[-1], BLOCK):
        g, c = gradient[part], state.c[part]
        rest = torch.sub(g, c, out=scratch[: g.shape[0]]).mul_(c)
        dot += torch.dot(g, c)
        norm_squared += torch.dot(c, c)
        coincidence += torch.dot(rest, rest)
        g.sub_(c, alpha=share)
    return gradient, confirmed.compared(state, dot, norm_squared, coincidence=coincidence)


def _share(state: Correction, limit: float) -> Tensor:
    """(…, 1) how much of c counts."""
    found = confirmed.unrefuted_share(state, ERRORS, state.coincidence / state.weight.clamp_min(confirmed.LEAST))
    return found.clamp_min(1.0 - min(limit, 1.0))
