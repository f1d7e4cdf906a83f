"""Exchanges that keep a flow on their edge: what moves it, and what bounds it.

Shapes: D numbers of the shared vector, k coordinates of one exchange.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from starling.gossip.api import Phase
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix import borne
from starling.gossip.overlay.api import doublings

LARGEST_THETA = 0.5  # largest θ that the gain follows: a larger one swaps models rather than averaging them (decision 0114)
KNOWN_KAPPA = 0.3  # the largest known to be stable on random pairs, chosen where the manifest leaves it open
STEADY_SHARE = 0.9  # largest chosen share of `steady_kappa`; at 1 flows no longer decay (decision 0081)


def chosen_kappa(members: int = 1) -> float:
    """Return κ where the manifest leaves it open: .3, at most STEADY_SHARE of the `steady_kappa` of so many members."""
    return min(KNOWN_KAPPA, STEADY_SHARE * steady_kappa(members))


def steady_kappa(members: int) -> float:
    """Return the least κ at which flows of n nodes no longer die out in directions in which the loss is flat, 1/⌈log2 n⌉; infinite for
    one node.

    One-peer overlays average in ⌈log2 n⌉ exchanges of a node. A flow acts in each of these rounds before its edge is used again, and by
    then the difference that it makes is 1 − 2κ⌈log2 n⌉ times the one before.
    """
    return 1.0 / doublings(members) if members > 1 else math.inf


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound of a flow after a move: an odd function, one rounding at a time."""

    limit: float  # bound of every coordinate, > 0
    leak: float = 0.0  # share that a move forgets, in [0, 1)
    coarse: bool = False  # flows are numbers of bfloat16

    def moved(self, kept: Tensor, moved: Tensor, share: float | Tensor = 1.0) -> Tensor:
        """Return that share of the flow (…, k), less its leak, moved, within the limit, in the dtype of `moved` (…, k)."""
        kept = kept.to(moved.dtype)
        if self.leak:
            share = share * (1.0 - self.leak)
        if not isinstance(share, float) or share != 1.0:
            kept = kept * share
        flow = (kept + moved).clamp_(-self.limit, self.limit)
        return flow.to(torch.bfloat16).to(flow.dtype) if self.coarse else flow


@dataclass(frozen=True, slots=True)
class Flows:
    """Averaging that keeps a flow on the edge, of corrections that count as far as gradients bear them out. Satisfies `Averaging`.

    Args:
        kappa: damping; None: `chosen_kappa`.
        bound: of a flow.
    """

    kappa: float | None
    bound: Bound

    def size(self, shared: int) -> int:
        """Return one flow."""
        return shared

    def stored(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of the bound."""
        return torch.bfloat16 if self.bound.coarse else dtype

    def gain(self, theta: float, ratio: float, phase: Phase) -> float:
        """G = 2·κ·min(θ, 1/2)·ratio/(K·η), η the η_c of the moment, but at least that of the highest rate over max(1, climb·ratio).

        Units of c per unit of difference. In an exchange of few coordinates differences are many rounds old: they, and their noise, do not
        shrink as the rate does.
        """
        kappa = chosen_kappa(phase.members) if self.kappa is None else self.kappa
        lr = max(phase.lr, phase.highest_lr / max(1.0, phase.climb * ratio))
        return 2.0 * kappa * min(theta, LARGEST_THETA) * ratio / (phase.local_steps * lr)

    def flow(self, kept: Tensor, moved: Tensor, share: float | Tensor = 1.0) -> Tensor:
        """Return that of the bound."""
        return self.bound.moved(kept, moved, share)

    def borne(self, state: borne.Total) -> Tensor | None:
        """Return what local steps bore out."""
        return borne.sent(state)
