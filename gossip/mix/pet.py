"""Pairwise edge tracking: gradient tracking whose correction is kept per edge and changed only by antisymmetric transactions.

Shapes: d parameters, k coordinates of one exchange.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from starling.gossip.api import Phase
from starling.gossip.lazy_torch import Tensor, torch


@dataclass(frozen=True, slots=True)
class Flows:
    """Averaging that leaves a flow on the edge: c_ij[S] <- clamp((1 − leak)·c_ij[S] + G·v). Satisfies `starling.gossip.api.Averaging`.

    Both ends apply the same decoded v with opposite signs, in operations that are odd functions of v and rounded one at a time
    (no fused multiply-add, whose presence differs between machines). So c_ij = −c_ji bit for bit, whatever leaks: both ends forget alike.

    What a liar once put into a flow is (1 − leak)^t of it after t exchanges on those coordinates; without a leak it stays until the edge is
    deleted. And at most G·‖v‖/leak of what it says in every exchange is ever there.

    Args:
        kappa: damping, in [0, 0.5].
        flow_limit: bound of every |c_ij| coordinate, > 0.
        leak: share of a flow that an exchange forgets where it moves it, in [0, 1).
    """

    kappa: float
    flow_limit: float
    leak: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.leak < 1.0:
            raise ValueError(f"leak must be in [0, 1), got {self.leak}")
        if not 0.0 <= self.kappa <= 0.5:
            raise ValueError(f"kappa must be in [0, 0.5], got {self.kappa}")
        if not 0.0 < self.flow_limit < math.inf:
            raise ValueError(f"flow_limit must be positive and finite, got {self.flow_limit}")

    def size(self, shared: int) -> int:
        """One flow, unless there is no correction."""
        return shared if self.kappa else 0

    def gain(self, theta: float, ratio: float, phase: Phase) -> float:
        """G = 2·κ·θ·ratio/(K·η_c): gradient units per unit of difference."""
        return 2.0 * self.kappa * theta * ratio / (phase.local_steps * phase.lr)

    def flow(self, kept: Tensor, moved: Tensor) -> Tensor:
        """What has not leaked, moved, within the limit."""
        if self.leak:
            kept = kept * (1.0 - self.leak)
        return (kept + moved).clamp(-self.flow_limit, self.flow_limit)


@dataclass(frozen=True, slots=True)
class Correction:
    """c (…, d), the sum of a node's flows."""

    c: Tensor


@dataclass(frozen=True, slots=True)
class Pet:
    """PET: local steps on g − c with c = Σ_j c_ij; an exchange moves x by ±θ·v and c_ij by ±G·v.

    The corrections of a swarm sum to zero, and whatever one neighbor contributed can be deleted: the others then still sum to zero.

    At θ = 1/2 with two nodes and linear f, one exchange per K local steps multiplies the error of c_12 by exactly 1 − 2κ. With a leak it
    settles at 2κ/(2κ + leak) of what it should be: what is forgotten is the price, DSGD is the limit.
    Measured stable: κ <= 0.1 for whole vectors, <= 0.3 for masks of a tenth; never above 0.5.

    Source: the damped, per-edge form of local exact diffusion (Alghunaim 2023, arXiv:2302.00620), which is edge-wise ADMM on
    random pairs; undamped it diverges on a changing overlay.

    Args:
        kappa: damping of the correction, in [0, 0.5]. 0: plain averaging.
        flow_limit: bound of every |c_ij| coordinate, in gradient units, > 0.
        leak: share of a flow that an exchange forgets, in [0, 1).
    """

    kappa: float
    flow_limit: float
    leak: float = 0.0
    asynchronous: ClassVar[bool] = True
    static: ClassVar[bool] = False

    def __post_init__(self) -> None:
        Flows(self.kappa, self.flow_limit, self.leak)

    @property
    def edge(self) -> Flows:
        """The flows."""
        return Flows(self.kappa, self.flow_limit, self.leak)

    def size(self, dim: int) -> int:
        """One vector: the model."""
        return dim

    def start(self, x: Tensor) -> Correction:
        """No edges, no correction."""
        return Correction(torch.zeros_like(x))

    def correct(self, state: Correction, gradient: Tensor) -> tuple[Tensor, Correction]:
        """The gradient less the correction: g − c."""
        return gradient - state.c, state

    def publish(self, state: Correction, x: Tensor, phase: Phase) -> tuple[Tensor, Correction]:
        """As it is."""
        return x, state

    def shared(self, state: Correction, x: Tensor) -> Tensor:
        """The model itself."""
        return x

    def absorb(self, state: Correction, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Correction]:
        """The averaged model."""
        return shared, state

    def corrected(self, state: Correction, flows: Tensor) -> Correction:
        """C is what the flows sum to."""
        return Correction(flows)
