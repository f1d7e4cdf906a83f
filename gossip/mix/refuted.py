"""How far later gradients refute a correction by differences of models (`starling.gossip.mix.confirmed`): for arrays, and one long vector.

Of a long one a fourth is compared in a local step, each part in its turn: comparing takes longer than correcting.

Shapes: "…" as in `starling.gossip.api`; d parameters.
"""

from dataclasses import dataclass

from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix import confirmed

ERRORS = 1.0  # standard errors in favour of a correction (decision 105)
BLOCK = (
    1 << 15
)  # coordinates that are compared at once; with fewer there are too many calls, with more a layer has its turn alone
TURNS = 4  # of blocks that are compared in one local step


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


def correct(state: Correction, gradient: Tensor, limit: float, step: int) -> tuple[Tensor, Correction]:
    """The same of one gradient (d,), in its place; only blocks whose turn it is in this local step are compared, and stand for all."""
    dim = gradient.shape[-1]
    scratch, turns = gradient.new_empty(min(BLOCK, dim)), min(TURNS, -(-dim // BLOCK))
    products = []
    for start in range(step % turns * BLOCK, dim, turns * BLOCK):
        g, c = gradient[start : start + BLOCK], state.c[start : start + BLOCK]
        rest = torch.sub(g, c, out=scratch[: g.shape[0]]).mul_(c)
        products.append(torch.stack((torch.dot(g, c), torch.dot(c, c), torch.dot(rest, rest))))
    dot, norm_squared, coincidence = torch.split(torch.stack(products).sum(0).mul_(turns), 1)
    gradient.sub_(state.c, alpha=float(_share(state, limit)))
    return gradient, confirmed.compared(state, dot, norm_squared, coincidence=coincidence)


def _share(state: Correction, limit: float) -> Tensor:
    """(…, 1) how much of c counts."""
    found = confirmed.unrefuted_share(state, ERRORS, state.coincidence / state.weight.clamp_min(confirmed.LEAST))
    return found.clamp_min(1.0 - min(limit, 1.0))
