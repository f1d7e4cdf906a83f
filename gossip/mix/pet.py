"""Pairwise edge tracking: gradient tracking whose correction is kept per edge and changed only by antisymmetric transactions.

Shapes: d parameters, k coordinates of one exchange.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from starling.gossip.api import Averaging, Phase
from starling.gossip.bounds import ShareBelowOne, parameters
from starling.gossip.errors import ConfigError
from starling.gossip.lazy_torch import Tensor
from starling.gossip.mix import borne
from starling.gossip.mix.base import MixerBase, PlainAveraging
from starling.gossip.mix.borne import Borne, Total
from starling.gossip.mix.flows import KNOWN_KAPPA, Bound, Flows
from starling.gossip.mix.moments import in_place_of_flows

FLOW_LIMIT, SETTLED_EDGES = 100.0, 8
MAX_GAIN = 1e9  # largest gain in a message (`starling.gossip.wire.schema.Request`)
MAX_CLIMB = 10.0  # `Phase.climb` at most


@parameters
class Pet(MixerBase):
    """PET: local steps on g − τc with c = Σ_j c_ij; an exchange moves x by ±θ·v and c_ij[S] <- clamp((1 − ½(1 − s))·c_ij[S] ± s·G·v).

    For sgd, which is linear in the gradient. With any other optimiser the mix of this name averages memories instead
    (`starling.gossip.mix.moments`). τ and s say how far the last gradients bear c out (`starling.gossip.mix.borne`). A leak is one more
    factor of what is kept. G has the rate of the moment, as differences shrink with it, within bounds (`gain`).

    Both ends apply the same decoded v and the same s with opposite signs, in operations that are odd functions of v and rounded one at
    a time (no fused multiply-add, whose presence differs between machines). So c_ij = −c_ji bit for bit, with any leak and any s: the
    corrections of a swarm sum to zero, and the part of one neighbor can be deleted: the others then still sum to zero.

    A false value is (1 − leak)^t of itself after t exchanges on those coordinates, without a leak until the edge is deleted; those of
    all exchanges add up to at most G·‖v‖/leak.

    At θ = 1/2 with two nodes and linear f, one exchange per K local steps multiplies the error of c_12 by exactly 1 − 2κ. With a leak it
    settles at 2κ/(2κ + leak) of its value: the price of forgetting, with DSGD as the limit.
    Among n nodes it is stable below κ = 1/⌈log2 n⌉ (`steady_kappa`).

    Source: the damped, per-edge form of local exact diffusion (Alghunaim 2023, arXiv:2302.00620), which is edge-wise ADMM on
    random pairs; undamped it diverges on a changing overlay.

    Args:
        kappa: damping of the correction by differences, in [0, 0.5]. 0: none. Left out: 0.3, and at most 0.9/⌈log2 n⌉ among n
            members. 0.2 stands loss and crashes better. From 1/⌈log2 n⌉ on flows grow without end.
        flow_limit: bound of every |c_ij| coordinate, in the units of c, > 0.
        leak: share of a flow that an exchange forgets where it moves it, in [0, 1): what a Byzantine peer put into it decays.
        settled_edges: flows of orderly closed edges that stay revocable.
        flows: numbers in which flows are kept. bfloat16 takes half the memory: what an exchange leaves is rounded to the nearest, which is
            odd as well, and by far less than its noise. Left out: float32; `starling create` writes bfloat16 for models of more than a
            million parameters.
    """

    kappa: Annotated[float, Meta(ge=0, le=0.5)] | None = None
    flow_limit: Annotated[float, Meta(gt=0, le=1e9)] = FLOW_LIMIT
    leak: ShareBelowOne = 0.0
    settled_edges: Annotated[int, Meta(ge=0, le=64)] = SETTLED_EDGES
    flows: Literal["float32", "bfloat16"] | None = None
    asynchronous: ClassVar[bool] = True
    replaces: ClassVar[bool] = True
    edge: Averaging = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        bound = Bound(self.flow_limit, self.leak, self.flows == "bfloat16")
        object.__setattr__(self, "edge", PlainAveraging() if self.kappa == 0.0 else Flows(self.kappa, bound))

    @staticmethod
    def check(agreed: Any) -> list[str]:
        """Check rules for the manifest; return warnings."""
        mix, kind = agreed.mix, agreed.optimizer.kind
        if in_place_of_flows(agreed):
            given = [key for key, default in _OF_FLOWS.items() if getattr(mix, key) != default]
            if given:
                raise ConfigError(
                    f"mix.{given[0]}: applies to flows, which optimizer={kind} does not use (its moments are averaged instead); leave it "
                    "out, or try `--set optimizer.kind=sgd`"
                )
            return []
        kept = KNOWN_KAPPA if mix.kappa is None else mix.kappa
        steps = agreed.pace.local_steps if agreed.pace.kind == "steps" else 1
        least = kept * MAX_CLIMB / (steps * MAX_GAIN)  # θ is at most 1/2
        if agreed.optimizer.lr < least:
            raise ConfigError(
                f"optimizer.lr: must be >= {least:g} with mix=pet, kappa = {kept:g} and {steps} local steps, got {agreed.optimizer.lr:g}: "
                f"flows would need a gain above {MAX_GAIN:g}, which no message carries; try `--set optimizer.lr={least:g}`"
            )
        if kept > KNOWN_KAPPA:
            return [f"mix.kappa: {kept:g} is above {KNOWN_KAPPA:g}, the largest known to be stable; try `--set mix.kappa={KNOWN_KAPPA:g}`"]
        return []

    def start(self, x: Tensor) -> Total:
        """Return no correction."""
        return borne.start(x)

    def correct(self, state: Total, gradient: Tensor) -> tuple[Tensor, Total]:
        """Return the gradient minus the confirmed part of the correction c; the gradient itself without flows."""
        return borne.correct(state, gradient)

    def correct_in_place(self, state: Total, gradient: Tensor, step: int) -> tuple[Tensor, Total]:
        """Correct the gradient (d,) of one node in its memory, as `starling.gossip.api.CorrectsInPlace`."""
        known = borne.subtract(Borne(*state.known.tolist()), state.c, gradient)
        return gradient, Total(state.c, state.known.new_tensor(known))

    def publish(self, state: Total, x: Tensor, phase: Phase) -> tuple[Tensor, Total]:
        """Return the model; the share over the steps until now is fixed for later messages."""
        return x, borne.published(state)

    def absorb(self, state: Total, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Total]:
        """Return the averaged model, and a state whose counters of steps restart."""
        return shared, borne.mixed(state)

    def corrected(self, state: Total, flows: Tensor) -> Total:
        """Return the state with this sum of flows."""
        return borne.corrected(state, flows)


_OF_FLOWS = {"kappa": None, "flow_limit": FLOW_LIMIT, "leak": 0.0, "settled_edges": SETTLED_EDGES, "flows": None}
"""Keys that are of flows alone, and what they are where nobody gave them."""
