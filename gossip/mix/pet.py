"""Pairwise edge tracking: gradient tracking whose correction is kept per edge and changed only by antisymmetric transactions.

Shapes: d parameters, k coordinates of one exchange.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal, Protocol

from msgspec import Meta

from starling.gossip.api import Averaging, Phase
from starling.gossip.bounds import NonNegative, Share, ShareBelowOne, parameters
from starling.gossip.errors import ConfigError
from starling.gossip.lazy_torch import Tensor
from starling.gossip.mix import drift
from starling.gossip.mix.base import MixerBase, PlainAveraging
from starling.gossip.mix.difference import InFull, Refutable
from starling.gossip.mix.drift import Confirmed, DriftInFull
from starling.gossip.mix.flows import NOTHING, Adaptive, Bound, Chosen, Flows, Given, TrackedFlows

Track = Literal["difference", "drift", "both"]
SETTLED_EDGES = 8
MAX_GAIN = 1e9  # of a message (`starling.gossip.wire.schema.Request`)
MAX_CLIMB = 10.0  # `Phase.climb` at most
KNOWN_KAPPA = 0.3
REFUTABLE = 0.5  # of a correction by differences, by default (decision 111)
BESIDE_DRIFT = 0.1  # largest kappa known to be stable where gradients move flows as well; the default there


def chosen_track(agreed: Any) -> Track:
    """What moves flows, of a manifest or scenario with the mix "pet".

    Left open, drift with any optimiser but sgd, unless it has a kappa.
    """
    track: Track | None = agreed.mix.track
    plain = agreed.optimizer.kind == "sgd" or agreed.mix.kappa is not None
    return track or ("difference" if plain else "drift")


def chosen_trust(agreed: Any) -> tuple[float, float]:
    """`drift_noise` and `refutable` of a manifest or scenario with the mix "pet", the one that is not used 0.

    Left out, `drift_noise` is 1 where drift is tracked, but with sgd 0; `refutable` is REFUTABLE where differences are tracked, with sgd
    and a κ that is left open as well.
    """
    mix, plain = agreed.mix, agreed.optimizer.kind == "sgd"
    if chosen_track(agreed) != "difference":
        noise = mix.drift_noise
        return (0.0 if plain else drift.LIMIT) if noise is None else float(noise), 0.0
    if not plain:
        return 0.0, 0.0
    most = mix.refutable
    return 0.0, (REFUTABLE if mix.kappa is None else 0.0) if most is None else float(most)


class Trust(Protocol):
    """How a local step is corrected: what is seen of gradients, and how far the sum c of flows is trusted."""

    @property
    def constant(self) -> bool:
        """Whether the same vector is taken from any gradient."""

    def start(self, x: Tensor) -> Any:
        """Return the state of a model x (…, d) without flows."""

    def correct(self, state: Any, gradient: Tensor) -> tuple[Tensor, Any]:
        """As of `Pet`."""

    def correct_in_place(self, state: Any, gradient: Tensor, step: int) -> tuple[Tensor, Any]:
        """As of `Pet`."""

    def corrected(self, state: Any, flows: Tensor) -> Any:
        """As of `Pet`."""

    def mixed(self, state: Any) -> Any:
        """Return the state after the exchanges of a round."""


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
        drift_noise: how much noise is held against each coordinate of c while drift is tracked: it counts by c²/(c² + (drift_noise·σ)²), σ
            that of a mean of our own gradients there, if they were all noise; and as a whole as far as later gradients confirm it (not at
            all where sources are alike). 0: c counts in full. Left out: 1, but with sgd 0.
        refutable: largest share of c that later gradients may refute while differences are tracked with sgd. 0: c counts in full. Left
            out: .5, and 0 with a kappa.
        drift_reach: longest that drift makes a flow, in lengths of the mean gradient of either end, 0 for any. What a peer lies of its
            gradients bends ours by no more; flows that have to be longer leave a bias.
    """

    kappa: Annotated[float, Meta(ge=0, le=0.5)] | None = None
    flow_limit: Annotated[float, Meta(gt=0, le=1e9)] = 100.0
    leak: ShareBelowOne = 0.0
    settled_edges: Annotated[int, Meta(ge=0, le=64)] = SETTLED_EDGES
    track: Track | None = None
    flows: Literal["float32", "bfloat16"] | None = None
    drift_noise: NonNegative | None = None
    refutable: Share | None = None
    drift_reach: NonNegative = 0.0
    asynchronous: ClassVar[bool] = True
    replaces: ClassVar[bool] = True
    edge: Averaging = field(init=False, repr=False, compare=False)
    trust: Trust = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "edge", self._edge())
        object.__setattr__(self, "trust", self._trust())

    def _edge(self) -> Averaging:
        bound = Bound(self.flow_limit, self.leak, self.flows == "bfloat16")
        match self.track:
            case "drift":
                return TrackedFlows(NOTHING, bound, "drift", self.drift_reach)
            case "both":
                damping = Chosen(BESIDE_DRIFT) if self.kappa is None else Given(self.kappa)
                return TrackedFlows(damping, bound, "both", self.drift_reach)
        if self.kappa == 0.0:
            return PlainAveraging()
        return Flows(Adaptive() if self.kappa is None else Given(self.kappa), bound)

    def _trust(self) -> Trust:
        if self.track in ("drift", "both"):
            return Confirmed(self.drift_noise, self.flows == "bfloat16") if self.drift_noise else DriftInFull()
        return Refutable(self.refutable) if self.refutable and self.kappa != 0.0 else InFull()

    @staticmethod
    def check(agreed: Any) -> list[str]:
        """Rules for the manifest; warnings."""
        kappa, kind = agreed.mix.kappa, agreed.optimizer.kind
        track = chosen_track(agreed)
        _check_trust(agreed.mix, track)
        if track == "drift":
            unused = "mix.kappa: is not used with mix.track = drift; leave it out, or try `--set mix.track=both`"
            return [] if kappa is None else [unused]
        if track == "both" and kind != "sgd":
            raise ConfigError(
                f"mix.track: both adds flows in units of updates, with optimizer={kind}, to flows in units of gradients; "
                "try `--set mix.track=drift`"
            )
        if track == "difference" and kind != "sgd" and agreed.mix.refutable is not None:
            unused = (
                f"mix.refutable: is not used with optimizer = {kind}, whose updates are corrected in full; leave it out"
            )
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
    def constant(self) -> bool:
        """Whether `correct` takes the same vector from any direction, `shift` of the state."""
        return self.trust.constant

    def start(self, x: Tensor) -> Any:
        """No correction."""
        return self.trust.start(x)

    def correct(self, state: Any, gradient: Tensor) -> tuple[Tensor, Any]:
        """The gradient less as much of the correction c as is trusted; the gradient itself without flows."""
        return self.trust.correct(state, gradient)

    def correct_in_place(self, state: Any, gradient: Tensor, step: int) -> tuple[Tensor, Any]:
        """As `correct`, of one node, in the place of the gradient (d,), as `starling.gossip.api.CorrectsInPlace`."""
        return self.trust.correct_in_place(state, gradient, step)

    def shift(self, state: Any) -> Tensor | None:
        """What `correct` takes from any direction, where that is `constant`; None: nothing."""
        assert isinstance(self.trust, InFull)
        return self.trust.shift(state)

    def absorb(self, state: Any, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Any]:
        """The averaged model; gradients are collected anew."""
        return shared, self.trust.mixed(state)

    def corrected(self, state: Any, flows: Tensor) -> Any:
        """The sum of the flows."""
        return self.trust.corrected(state, flows)


def _check_trust(mix: Any, track: Track) -> None:
    """Raise ConfigError where a key of trust is given that what moves flows here does not have."""
    if track == "difference" and mix.drift_noise is not None:
        raise ConfigError(
            f"mix.drift_noise: is held against corrections by mean gradients, and mix.track is difference here, got {mix.drift_noise:g}; "
            "leave it out, or try `--set mix.track=drift`"
        )
    if track != "difference" and mix.refutable is not None:
        raise ConfigError(
            f"mix.refutable: is a share of corrections by differences, and mix.track is {track} here, got {mix.refutable:g}; leave it out, "
            "or try `--set mix.track=difference`"
        )
