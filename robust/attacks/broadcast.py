"""Attacks that send one vector to all receivers (Gaussian noise: one distribution), from the honest mean or the attacker's vector.

Shapes: d parameters, h honest vectors.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from starling.gossip.bounds import Count, Share, parameters
from starling.gossip.errors import ConfigError
from starling.gossip.lazy_torch import Generator, Tensor, torch
from starling.robust.attacks.api import Attack, Formula, Scene, Target
from starling.robust.attacks.catalogue import ATTACKS
from starling.robust.attacks.statistics import deviation, mean, not_negative, positive

MEMORY = 16  # vectors that an attacker may store


def sign_flip(update: bool = False) -> Formula:
    """−μ with the honest mean μ; or, of updates, before − (own − before): its own step, backwards.

    Source: for models byzfl (2024); for updates Li et al. 2019, RSA (arXiv:1811.03761).

    Args:
        update: reverse its own step instead.
    """
    return Formula(lambda scene, _: 2 * scene.before - scene.own if update else -mean(scene.honest))


def gaussian(scale: float = 3.0, floor: float = 0.1) -> Formula:
    """μ + N(0, s²) in every coordinate, s = scale · mean of σ + floor, drawn for each receiver; σ is the honest standard deviation.

    Args:
        scale: of the honest spread, >= 0.
        floor: noise where the honest agree, >= 0.
    """
    not_negative("scale", scale)
    not_negative("floor", floor)

    def message(scene: Scene, generator: Generator) -> Tensor:
        spread = scale * deviation(scene.honest).mean() + floor
        noise = torch.randn(scene.receivers.shape, generator=generator).to(scene.own)
        return mean(scene.honest) + spread * noise

    return Formula(message)


def zero() -> Formula:
    """Send 0 in every coordinate."""
    return Formula(lambda scene, _: torch.zeros_like(scene.own))


def ipm(epsilon: float = 0.1) -> Formula:
    """Inner product manipulation: −epsilon · μ, so that the mean of all has a negative inner product with μ.

    That takes enough attackers, or a large epsilon.

    Source: Xie, Koyejo and Gupta 2019, Fall of Empires (arXiv:1903.03936).

    Args:
        epsilon: > 0.
    """
    positive("epsilon", epsilon)
    return Formula(lambda scene, _: -epsilon * mean(scene.honest))


def foe(epsilon: float = 10.0) -> Formula:
    """Fall of Empires: `ipm` with a large epsilon, so that the sent vector lies far on the opposite side of 0."""
    return ipm(epsilon)


def free_rider(noise: float = 0.0) -> Formula:
    """Send the result of its last mixing without local steps, plus N(0, noise²) so that it is not an exact copy.

    Args:
        noise: standard deviation, >= 0.
    """
    not_negative("noise", noise)

    def message(scene: Scene, generator: Generator) -> Tensor:
        return scene.before + noise * torch.randn(scene.own.shape, generator=generator).to(scene.own)

    return Formula(message)


@parameters
class Stale:
    """Send the vector of `lag` rounds ago, signed and well-formed; the common initial vector for lag = 0 or before round `lag`.

    With a `share` the initial vector has gone this share of the way to μ. The state is (round, own vector) of the last `lag` rounds.

    Args:
        lag: rounds, in [0, 15].
        share: in [0, 1].
    """

    lag: Annotated[int, Meta(ge=0, lt=MEMORY)] = 0
    share: Share = 0.0
    targets: ClassVar[Target] = "vector"

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        state: tuple[tuple[int, Tensor], ...] = memory or ()
        old = [vector for sent, vector in state if sent <= scene.round - self.lag]
        message = old[-1] if old else scene.start
        if self.share and not old:
            message = message + self.share * (mean(scene.honest) - message)
        if self.lag and (not state or state[-1][0] < scene.round):
            state = (*state, (scene.round, scene.own.clone()))[-self.lag - 1 :]
        return message.expand_as(scene.receivers), state


@dataclass(frozen=True, slots=True)
class _Imitated:
    """State of the mimic attack: which honest node is imitated, or the search for it."""

    axis: Tensor  # (d,) estimate of the axis of largest honest variance
    seen: int  # rounds of the search so far
    sums: dict[int, float]  # honest node -> sum of its projections
    chosen: int | None  # number of the imitated node, None during the search


@parameters
class Mimic:
    """The vector of one honest node, always the same one: its data get more weight than those of others.

    In the first `warmup` rounds attackers estimate the axis of largest honest variance, by one step of power iteration a round; then
    they take the node furthest along it. Without warm-up it is the first they know, which is also sent during the search. In rounds
    without its vector μ is sent.

    Source: Karimireddy, He and Jaggi 2022, Byzantine-robust learning on heterogeneous datasets via bucketing (arXiv:2006.09365), B.

    Args:
        warmup: rounds, >= 0.
    """

    warmup: Count = 0
    targets: ClassVar[Target] = "vector"

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """Draw d numbers in the first round of a warm-up."""
        state: _Imitated | None = memory
        if state is None:
            axis = torch.randn(scene.own.shape, generator=generator).to(scene.own) if self.warmup else scene.own[:0]
            state = _Imitated(axis, 0, {}, None if self.warmup else int(scene.members[0]))
        chosen = state.chosen
        if chosen is None:
            state = self._search(state, scene)
            chosen = state.chosen if state.chosen is not None else int(scene.members[0])
        rows = (scene.members == chosen).nonzero().flatten()
        message = scene.honest[rows[0]] if len(rows) else mean(scene.honest)
        return message.expand_as(scene.receivers), state

    def _search(self, state: _Imitated, scene: Scene) -> _Imitated:
        away = scene.honest - mean(scene.honest)
        turned = away.T @ (away @ state.axis)
        axis = turned / turned.norm() if turned.norm() > 0 else state.axis / state.axis.norm()
        axis = axis + state.axis * state.seen / (state.seen + 1) if state.seen else axis
        axis = axis / axis.norm()
        sums = dict(state.sums)
        for member, along in zip(scene.members.tolist(), (away @ axis).tolist(), strict=True):
            sums[member] = sums.get(member, 0.0) + along
        seen = state.seen + 1
        chosen = max(sorted(sums), key=lambda member: abs(sums[member])) if seen >= self.warmup else None
        return _Imitated(axis, seen, sums, chosen)


@parameters
class Sleeper:
    """Honest for a share of the run, then another attack, so that its reputation is good. Always honest in an endless run.

    Args:
        attack: used after that.
        after: share of the rounds, in [0, 1].
    """

    attack: Attack
    after: Share
    targets: ClassVar[Target] = "vector"

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """Send the honest vector before the attack starts, then the attack's vector."""
        if scene.rounds == 0 or scene.round < int(self.after * scene.rounds):
            return scene.own.expand_as(scene.receivers), memory
        return self.attack.craft(memory, scene, generator)


def sleeper(attack: str = "foe", after: float = 0.5) -> Sleeper:
    """`Sleeper` with an attack by name.

    Raises:
        ConfigError: there is no such attack on vectors.
    """
    ATTACKS.check(attack, "attack_params.attack")
    if attack == "sleeper" or ATTACKS.facts(attack).targets != "vector":
        raise ConfigError(f"attack_params.attack: must be another attack on vectors, got {attack!r}; see docs/attacks.md")
    return Sleeper(ATTACKS.build("attack_params", attack, {}), after)
