"""Exchanges that keep a flow on their edge: what moves it, and what bounds it.

Shapes: D numbers of the shared vector, k coordinates of one exchange.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from starling.gossip.api import Phase
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix import drift
from starling.gossip.overlay.api import doublings

_ROUNDED = 1e-9  # 1/(1 − .9) is a little more than 10, and .6/3 a little less than .2
LARGEST_THETA = 0.5  # that the gain follows: a larger one exchanges models rather than averages them (decision 114)
STEADY_SHARE = 0.6  # of `steady_kappa` that is chosen at the most; at 1 flows no longer die out (decision 81)


def chosen_kappa(ratio: float, local_steps: float, memory: float, members: int = 1) -> float:
    """κ where the manifest leaves it open: .2, and .1 where a coordinate is exchanged again before a correction of it has taken effect.

    A coordinate is in every 1/ratio-th exchange, of which one follows after K = `local_steps` > 0; `memory` and `members` are those of
    `Phase`. At most STEADY_SHARE of the `steady_kappa` of so many.
    """
    of_pairs = 0.2 if local_steps >= memory * ratio * (1.0 - _ROUNDED) else 0.1
    most = STEADY_SHARE * steady_kappa(members)
    return of_pairs if of_pairs <= most * (1.0 + _ROUNDED) else most


def steady_kappa(members: int) -> float:
    """The least κ at which flows of n nodes no longer die out in directions in which the loss is flat, 1/⌈log2 n⌉; infinite for one node.

    One-peer overlays average in ⌈log2 n⌉ exchanges of a node. A flow acts in each of these rounds before its edge is used again, and by
    then the difference that it makes is 1 − 2κ⌈log2 n⌉ times the one before.
    """
    return 1.0 / doublings(members) if members > 1 else math.inf


class Damping(Protocol):
    """How much of a difference of models moves a flow."""

    @property
    def adapts(self) -> bool:
        """Whether it follows the speed of who initiates an exchange."""

    def kappa(self, ratio: float, phase: Phase) -> float:
        """Return κ for an exchange of this share of the coordinates; 0: differences move no flow."""


@dataclass(frozen=True, slots=True)
class Given:
    """κ as it is given."""

    value: float
    adapts: bool = False

    def kappa(self, ratio: float, phase: Phase) -> float:
        """Return the value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Chosen:
    """`chosen_kappa`, at most `most`."""

    most: float
    adapts: bool = False

    def kappa(self, ratio: float, phase: Phase) -> float:
        """Return the choice."""
        return min(self.most, chosen_kappa(ratio, phase.local_steps, phase.memory, phase.members))


@dataclass(frozen=True, slots=True)
class Adaptive:
    """`chosen_kappa`, times the speed of who initiates while the rate is below its highest."""

    adapts: bool = True

    def kappa(self, ratio: float, phase: Phase) -> float:
        """Return the choice, sped. At a constant rate errors of lost exchanges would raise the speed as well."""
        speed = phase.speed if phase.lr < phase.highest_lr else 1.0
        return chosen_kappa(ratio, phase.local_steps, phase.memory, phase.members) * speed


NOTHING = Given(0.0)
"""Differences of models move no flow."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What becomes of a flow that was moved: an odd function, one rounding at a time."""

    limit: float  # of every coordinate, > 0
    leak: float = 0.0  # share that a move forgets, in [0, 1)
    coarse: bool = False  # flows are numbers of bfloat16

    def moved(self, kept: Tensor, moved: Tensor) -> Tensor:
        """Return the flow (…, k) less its leak, moved, within the limit, in the dtype of `moved` (…, k)."""
        kept = kept.to(moved.dtype)
        if self.leak:
            kept = kept * (1.0 - self.leak)
        flow = (kept + moved).clamp(-self.limit, self.limit)
        return flow.to(torch.bfloat16).to(flow.dtype) if self.coarse else flow


@dataclass(frozen=True, slots=True)
class Flows:
    """Averaging that keeps a flow on the edge. Satisfies `starling.gossip.api.Averaging`."""

    damping: Damping
    bound: Bound

    @property
    def adapts(self) -> bool:
        """That of the damping."""
        return self.damping.adapts

    def size(self, shared: int) -> int:
        """One flow."""
        return shared

    def stored(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of the bound."""
        return torch.bfloat16 if self.bound.coarse else dtype

    def gain(self, theta: float, ratio: float, phase: Phase) -> float:
        """G = 2·κ·min(θ, 1/2)·ratio/(K·η), η the η_c of the moment, but at least that of the highest rate over max(1, climb·ratio).

        Units of c per unit of difference; 0 where differences move nothing. In an exchange of few coordinates differences are many rounds
        old: they, and their noise, do not shrink as the rate does.
        """
        kappa = self.damping.kappa(ratio, phase)
        if kappa == 0.0:
            return 0.0
        lr = max(phase.lr, phase.highest_lr / max(1.0, phase.climb * ratio))
        return 2.0 * kappa * min(theta, LARGEST_THETA) * ratio / (phase.local_steps * lr)

    def flow(self, kept: Tensor, moved: Tensor) -> Tensor:
        """That of the bound."""
        return self.bound.moved(kept, moved)


@dataclass(frozen=True, slots=True)
class TrackedFlows(Flows):
    """The same, moved by the difference of mean gradients besides. Satisfies `starling.gossip.api.Tracking`."""

    track: Literal["drift", "both"]
    longest: float = 0.0  # that directions make a flow, in lengths of the mean gradient of either end; 0: any

    def direction(self, state: Any) -> tuple[Tensor, Tensor]:
        """Of a state of `starling.gossip.mix.drift`."""
        return drift.direction(state)

    def reach(self, state: Any) -> Tensor | None:
        """Of a state of `starling.gossip.mix.drift`; None without a limit."""
        return drift.reach(state, self.longest) if self.longest else None
