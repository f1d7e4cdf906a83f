"""Pairwise edge tracking: gradient tracking whose correction is kept per edge and changed only by antisymmetric transactions.

Shapes: d parameters, k coordinates of one exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from starling.gossip.api import Phase
from starling.gossip.bounds import Positive, ShareBelowOne, parameters
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.base import MixerBase

SETTLED_EDGES = 8
KNOWN_KAPPA = 0.3


@dataclass(frozen=True, slots=True)
class Correction:
    """c (…, d), the sum of a node's flows."""

    c: Tensor


@parameters
class Pet(MixerBase):
    """PET: local steps on g − c with c = Σ_j c_ij; an exchange moves x by ±θ·v and c_ij[S] <- clamp((1 − leak)·c_ij[S] ± G·v).

    Both ends apply the same decoded v with opposite signs, in operations that are odd functions of v and rounded one at a time
    (no fused multiply-add, whose presence differs between machines). So c_ij = −c_ji bit for bit, with any leak: the
    corrections of a swarm sum to zero, and the part of one neighbor can be deleted: the others then still sum to zero.

    A false value is (1 − leak)^t of itself after t exchanges on those coordinates, without a leak until the edge is deleted; those of
    all exchanges add up to at most G·‖v‖/leak.

    At θ = 1/2 with two nodes and linear f, one exchange per K local steps multiplies the error of c_12 by exactly 1 − 2κ. With a leak it
    settles at 2κ/(2κ + leak) of its value: the price of forgetting, with DSGD as the limit.
    Measured stable: κ <= 0.1 for whole vectors, <= 0.3 for masks of a tenth; never above 0.5.

    Source: the damped, per-edge form of local exact diffusion (Alghunaim 2023, arXiv:2302.00620), which is edge-wise ADMM on
    random pairs; undamped it diverges on a changing overlay.

    Args:
        kappa: damping of the correction, in [0, 0.5]. 0: plain averaging.
        flow_limit: bound of every |c_ij| coordinate, in gradient units, > 0.
        leak: share of a flow that an exchange forgets where it moves it, in [0, 1): what a Byzantine peer put into it decays.
        settled_edges: flows of orderly closed edges that stay revocable.
    """

    kappa: Annotated[float, Meta(ge=0, le=0.5)] = 0.1
    flow_limit: Positive = 100.0
    leak: ShareBelowOne = 0.0
    settled_edges: Annotated[int, Meta(ge=0, le=64)] = SETTLED_EDGES
    asynchronous: ClassVar[bool] = True

    @staticmethod
    def check(agreed: Any) -> list[str]:
        """Rules for the manifest; warnings."""
        kappa = agreed.mix.kappa
        if kappa > KNOWN_KAPPA:
            return [
                f"mix.kappa: {kappa:g} is above {KNOWN_KAPPA:g}, the largest known to be stable; try `--set mix.kappa=0.3`"
            ]
        return []

    @property
    def edge(self) -> Pet:
        """Averaging that keeps a flow on the edge: itself. Satisfies `starling.gossip.api.Averaging`."""
        return self

    def size(self, shared: int) -> int:
        """One flow, unless there is no correction."""
        return shared if self.kappa else 0

    def gain(self, theta: float, ratio: float, phase: Phase) -> float:
        """G = 2·κ·θ·ratio/(K·η_c): gradient units per unit of difference."""
        return 2.0 * self.kappa * theta * ratio / (phase.local_steps * phase.lr)

    def flow(self, kept: Tensor, moved: Tensor) -> Tensor:
        """The flow less its leak, moved, within the limit."""
        if self.leak:
            kept = kept * (1.0 - self.leak)
        return (kept + moved).clamp(-self.flow_limit, self.flow_limit)

    def start(self, x: Tensor) -> Correction:
        """No correction."""
        return Correction(torch.zeros_like(x))

    def correct(self, state: Correction, gradient: Tensor) -> tuple[Tensor, Correction]:
        """The gradient less the correction: g − c."""
        return gradient - state.c, state

    def corrected(self, state: Correction, flows: Tensor) -> Correction:
        """The sum of the flows."""
        return Correction(flows)
