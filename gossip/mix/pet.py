"""Pairwise edge tracking: gradient tracking whose correction is kept per edge and changed only by antisymmetric transactions.

Shapes: d parameters, k coordinates of one exchange.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from starling.gossip.api import Phase
from starling.gossip.bounds import NonNegative, ShareBelowOne, parameters
from starling.gossip.errors import ConfigError
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix import drift, drift_in_place, refuted
from starling.gossip.mix.base import MixerBase
from starling.gossip.overlay.api import doublings

Track = Literal["difference", "drift", "both"]
SETTLED_EDGES = 8
MAX_GAIN = 1e9  # of a message (`starling.gossip.wire.schema.Request`)
MAX_CLIMB = 10.0  # `Phase.climb` at most
KNOWN_KAPPA = 0.3
REFUTABLE = 0.5  # of a correction by differences, by default (decision 111)
_ROUNDED = 1e-9  # 1/(1 − .9) is a little more than 10, and .6/3 a little less than .2
BESIDE_DRIFT = 0.1  # largest kappa known to be stable where gradients move flows as well; the default there
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


def chosen_track(agreed: Any) -> Track:
    """What moves flows, of a manifest or scenario with the mix "pet".

    Left open, drift with any optimiser but sgd, unless it has a kappa.
    """
    track: Track | None = agreed.mix.track
    plain = agreed.optimizer.kind == "sgd" or agreed.mix.kappa is not None
    return track or ("difference" if plain else "drift")


def chosen_limit(agreed: Any) -> float:
    """`drift_limit` of a manifest or scenario with the mix "pet".

    Left open, 1 where drift is tracked, with sgd 0; REFUTABLE where differences are, with sgd and a κ that is left open as well.
    """
    mix, plain = agreed.mix, agreed.optimizer.kind == "sgd"
    differs = chosen_track(agreed) == "difference"
    if differs and not plain:
        return 0.0
    if mix.drift_limit is not None:
        return float(mix.drift_limit)
    if not plain:
        return drift.LIMIT
    return REFUTABLE if differs and mix.kappa is None else 0.0


@parameters
class Pet(MixerBase):
    """PET: local steps on g − c with c = Σ_j c_ij; an exchange moves x by ±θ·v and c_ij[S] <- clamp((1 − leak)·c_ij[S] ± G·v).

    G has the rate of the moment, as differences shrink with it, within bounds (`gain`). Where differences are tracked with any optimiser
    but sgd, c is in units of its updates and is added to those (`starling.node.engine.optimizers`).

    Both ends apply the same decoded v with opposite signs, in operations that are odd functions of v and rounded one at a time
    (no fused multiply-add, whose presence differs between machines). So c_ij = −c_ji bit for bit, with any leak: the
    corrections of a swarm sum to zero, and the part of one neighbor can be deleted: the others then still sum to zero.

    A false value is (1 − leak)^t of itself after t exchanges on those coordinates, without a leak until the edge is deleted; those of
    all exchanges add up to at most G·‖v‖/leak.

    At θ = 1/2 with two nodes and linear f, one exchange per K local steps multiplies the error of c_12 by exactly 1 − 2κ. With a leak it
    settles at 2κ/(2κ + leak) of its value: the price of forgetting, with DSGD as the limit.
    Among n nodes it is stable below κ = 1/⌈log2 n⌉ (`steady_kappa`); measured so with faults: κ <= 0.2 with eight, and 0.1 for whole
    vectors where rounds are shorter than the optimiser's memory.

    Source: the damped, per-edge form of local exact diffusion (Alghunaim 2023, arXiv:2302.00620), which is edge-wise ADMM on
    random pairs; undamped it diverges on a changing overlay.

    Args:
        kappa: damping of the correction by differences, in [0, 0.5]. 0: none. Left out: 0.2, or 0.1 where rounds are shorter than the
            optimiser's memory or gradients move flows as well, and at most 0.6/⌈log2 n⌉ among n members; where differences alone move
            them, up to 1.5 times that while the rate is below its highest and flows still grow along themselves. From 1/⌈log2 n⌉ on
            flows grow without end.
        flow_limit: bound of every |c_ij| coordinate, in the units of c, > 0.
        leak: share of a flow that an exchange forgets where it moves it, in [0, 1): what a Byzantine peer put into it decays.
        settled_edges: flows of orderly closed edges that stay revocable.
        track: what moves a flow. difference: that of the models, G·v. drift: that of mean gradients, −w'·u. both. Left out: difference
            with sgd or a kappa, else drift.
        flows: numbers in which flows are kept, and the mean square of gradients where drift is held against their noise. bfloat16 takes
            half the memory: what an exchange leaves is rounded to the nearest, which is odd as well, and by far less than its noise. Left
            out: float32; `starling found` writes bfloat16 for models of more than a million parameters.
        drift_limit: how much noise is held against each coordinate of c while drift is tracked: it counts by c²/(c² + (limit·σ)²), σ that
            of a mean of our own gradients there, if they were all noise; and as a whole as far as later gradients confirm it (not at all
            where sources are alike). It is a multiple of noise, not a bound. Where differences are tracked with sgd: the largest share of c
            that later gradients may refute, 1 also where it is more. 0: c counts in full. Left out: 1 where drift is tracked, but with sgd
            0; where differences are, .5, and 0 with a kappa.
        drift_reach: longest that drift makes a flow, in lengths of the mean gradient of either end, 0 for any. What a peer lies of its
            gradients bends ours by no more; flows that have to be longer leave a bias.
    """

    kappa: Annotated[float, Meta(ge=0, le=0.5)] | None = None
    flow_limit: Annotated[float, Meta(gt=0, le=1e9)] = 100.0
    leak: ShareBelowOne = 0.0
    settled_edges: Annotated[int, Meta(ge=0, le=64)] = SETTLED_EDGES
    track: Track | None = None
    flows: Literal["float32", "bfloat16"] | None = None
    drift_limit: NonNegative | None = None
    drift_reach: NonNegative = 0.0
    asynchronous: ClassVar[bool] = True
    replaces: ClassVar[bool] = True

    @staticmethod
    def check(agreed: Any) -> list[str]:
        """Rules for the manifest; warnings."""
        kappa, kind = agreed.mix.kappa, agreed.optimizer.kind
        track = chosen_track(agreed)
        if track == "drift":
            unused = "mix.kappa: is not used with mix.track = drift; leave it out, or try `--set mix.track=both`"
            return [] if kappa is None else [unused]
        if track == "both" and kind != "sgd":
            raise ConfigError(
                f"mix.track: both adds flows in units of updates, with optimizer={kind}, to flows in units of gradients; "
                "try `--set mix.track=drift`"
            )
        if track == "difference" and kind != "sgd" and agreed.mix.drift_limit is not None:
            unused = f"mix.drift_limit: is not used with mix.track = difference and optimizer = {kind}; leave it out"
            return [f"{unused}, or try `--set mix.track=drift`"]
        known = BESIDE_DRIFT if track == "both" else KNOWN_KAPPA
        kept = known if kappa is None else kappa
        steps = agreed.pace.local_steps if agreed.pace.kind == "steps" else 1
        least = kept * MAX_CLIMB / (steps * MAX_GAIN)  # θ is at most 1/2
        if agreed.optimizer.lr < least:
            raise ConfigError(
                f"optimizer.lr: must be >= {least:g} with mix=pet, kappa = {kept:g} and {steps} local steps, got {agreed.optimizer.lr:g}: "
                f"flows would need a gain above {MAX_GAIN:g}, which no message carries; try `--set optimizer.lr={least:g}`"
            )
        if kappa is not None and kappa > known:
            return [
                f"mix.kappa: {kappa:g} is above {known:g}, the largest known to be stable; try `--set mix.kappa={known:g}`"
            ]
        return []

    @property
    def edge(self) -> Pet:
        """Averaging that keeps a flow on the edge: itself. Satisfies `starling.gossip.api.Averaging`."""
        return self

    @property
    def adapts(self) -> bool:
        """Whether kappa is left open: it is then `chosen_kappa`, times the speed of who initiates while the rate is below its highest."""
        return self.kappa is None and self.track not in ("drift", "both")

    @property
    def drifts(self) -> bool:
        """Whether gradients move flows."""
        return self.track in ("drift", "both")

    def size(self, shared: int) -> int:
        """One flow, unless there is no correction."""
        return shared if self.drifts or self.kappa != 0.0 else 0

    def gain(self, theta: float, ratio: float, phase: Phase) -> float:
        """G = 2·κ·min(θ, 1/2)·ratio/(K·η), η the η_c of the moment, but at least that of the highest rate over max(1, climb·ratio).

        Units of c per unit of difference; 0 where only drift is tracked. In an exchange of few coordinates differences are many rounds
        old: they, and their noise, do not shrink as the rate does.
        """
        if self.track == "drift":
            return 0.0
        kappa = self.kappa
        if kappa is None:
            chosen = chosen_kappa(ratio, phase.local_steps, phase.memory, phase.members)
            falling = phase.lr < phase.highest_lr  # at a constant rate errors of lost exchanges would raise it as well
            faster = phase.speed if falling else 1.0
            kappa = min(BESIDE_DRIFT, chosen) if self.track == "both" else chosen * faster
        lr = max(phase.lr, phase.highest_lr / max(1.0, phase.climb * ratio))
        return 2.0 * kappa * min(theta, LARGEST_THETA) * ratio / (phase.local_steps * lr)

    def flow(self, kept: Tensor, moved: Tensor) -> Tensor:
        """The flow less its leak, moved, within the limit, in numbers of `flows`."""
        kept = kept.to(moved.dtype)
        if self.leak:
            kept = kept * (1.0 - self.leak)
        flow = (kept + moved).clamp(-self.flow_limit, self.flow_limit)
        return flow.to(torch.bfloat16).to(flow.dtype) if self.flows == "bfloat16" else flow

    def start(self, x: Tensor) -> refuted.Correction | drift.Gradients:
        """No correction."""
        if not self.drifts:
            return refuted.start(x)
        return drift.start(x, limited=bool(self.drift_limit), coarse=self.flows == "bfloat16")

    def correct(self, state: Any, gradient: Tensor) -> tuple[Tensor, Any]:
        """The gradient less the correction, g − c; the gradient itself where there never is one."""
        if not self.size(1):
            return gradient, state
        if not self.drifts:
            limit = self.drift_limit
            return refuted.corrected(state, gradient, limit) if limit else (gradient - state.c, state)
        state = drift.observe(state, gradient)
        return drift.corrected(state, gradient, self.drift_limit or 0.0)

    @property
    def in_place(self) -> bool:
        """Whether a correction depends on gradients, so that `correct_owned` is worth while."""
        return self.drifts or bool(self.drift_limit and self.size(1))

    def correct_owned(self, state: Any, gradient: Tensor, step: int) -> tuple[Tensor, Any]:
        """As `correct`, of one node where `in_place`, in the place of the gradient and of the state, which nobody else uses.

        `step`: number of the local step.
        """
        limit = self.drift_limit or 0.0
        if self.drifts:
            return drift_in_place.correct(state, gradient, limit)
        return refuted.correct(state, gradient, limit, step)

    def offset(self, state: Any) -> Tensor | None:
        """What `correct` takes from any direction, where that is the same vector whatever the direction; None where it is not."""
        return None if self.drifts or self.drift_limit or not self.size(1) else state.c

    def absorb(self, state: Any, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Any]:
        """The averaged model; gradients are collected anew."""
        return shared, drift.mixed(state) if self.drifts else state

    def corrected(self, state: Any, flows: Tensor) -> Any:
        """The sum of the flows."""
        return replace(state, c=flows)

    def direction(self, state: drift.Gradients) -> tuple[Tensor, Tensor]:
        """Of a state with gradients. So the edge satisfies `starling.gossip.api.Tracking`."""
        return drift.direction(state)

    def reach(self, state: drift.Gradients) -> Tensor | None:
        """Of a state with gradients; None without a limit."""
        return drift.reach(state, self.drift_reach) if self.drift_reach else None
