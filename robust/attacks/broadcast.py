"""Attacks that send one vector to all: made of the mean of the honest, or of the attacker's own.

Shapes: d parameters, h honest vectors, r receivers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from starling.gossip.lazy_torch import Generator, Tensor, torch
from starling.robust.attacks.api import Scene, Target
from starling.robust.attacks.statistics import deviation, mean, to_all

MEMORY = 16  # vectors that an attacker may keep


@dataclass(frozen=True, slots=True)
class SignFlip:
    """−μ with the mean μ of the honest; or, of updates, before − (own − before): its own step, backwards.

    Source: for models byzfl (2024); for updates Li et al. 2019, RSA (arXiv:1811.03761).

    Args:
        update: turn its own step around instead.
    """

    update: bool = False
    targets: ClassVar[Target] = "vector"

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """The same to all."""
        message = 2 * scene.before - scene.own if self.update else -mean(scene.honest)
        return to_all(message, scene), memory


@dataclass(frozen=True, slots=True)
class Gaussian:
    """μ + N(0, s²) in every coordinate, s = scale · mean of σ + floor; σ is the honest vectors' standard deviation, by coordinate.

    Another draw for each receiver.

    Args:
        scale: of the honest spread, >= 0.
        floor: noise where the honest agree, >= 0.
    """

    scale: float = 3.0
    floor: float = 0.1
    targets: ClassVar[Target] = "vector"

    def __post_init__(self) -> None:
        _not_negative("scale", self.scale)
        _not_negative("floor", self.floor)

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """Draws r · d numbers."""
        spread = self.scale * deviation(scene.honest).mean() + self.floor
        noise = torch.randn(scene.receivers.shape, generator=generator).to(scene.own)
        return mean(scene.honest) + spread * noise, memory


@dataclass(frozen=True, slots=True)
class Zero:
    """0 in every coordinate."""

    targets: ClassVar[Target] = "vector"

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """The same to all."""
        return to_all(torch.zeros_like(scene.own), scene), memory


@dataclass(frozen=True, slots=True)
class InnerProduct:
    """−epsilon · μ: the mean of all then has a negative inner product with μ, if the attackers are many enough or epsilon large.

    Source: Xie, Koyejo and Gupta 2019, Fall of Empires (arXiv:1903.03936). epsilon = 0.1 is "IPM"; 10 is "FoE", far beyond 0.

    Args:
        epsilon: > 0.
    """

    epsilon: float
    targets: ClassVar[Target] = "vector"

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ValueError(f"epsilon must be > 0, got {self.epsilon}")

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """The same to all."""
        return to_all(-self.epsilon * mean(scene.honest), scene), memory


def ipm(epsilon: float = 0.1) -> InnerProduct:
    """−0.1 μ: a pull to 0 that stays near."""
    return InnerProduct(epsilon)


def foe(epsilon: float = 10.0) -> InnerProduct:
    """−10 μ: far on the other side of 0."""
    return InnerProduct(epsilon)


@dataclass(frozen=True, slots=True)
class Stale:
    """Its vector of `lag` rounds ago, signed and well-formed; the common initial vector for lag = 0 or before round `lag`.

    Args:
        lag: rounds, in [0, 15].
    """

    lag: int = 0
    targets: ClassVar[Target] = "vector"

    def __post_init__(self) -> None:
        if not 0 <= self.lag < MEMORY:
            raise ValueError(f"lag must be in [0, {MEMORY}), got {self.lag}")

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """The same to all. Remembers (round, own vector) of the last `lag` rounds."""
        held: tuple[tuple[int, Tensor], ...] = memory or ()
        old = [vector for sent, vector in held if sent <= scene.round - self.lag]
        message = old[-1] if old else scene.start
        if self.lag and (not held or held[-1][0] < scene.round):
            held = (*held, (scene.round, scene.own.clone()))[-self.lag - 1 :]
        return to_all(message, scene), held


@dataclass(frozen=True, slots=True)
class FreeRider:
    """What came out of its last mixing, without any step of its own, plus N(0, noise²) so that it does not look like an echo.

    Args:
        noise: standard deviation, >= 0.
    """

    noise: float = 0.0
    targets: ClassVar[Target] = "vector"

    def __post_init__(self) -> None:
        _not_negative("noise", self.noise)

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """The same to all. Draws d numbers."""
        noise = torch.randn(scene.own.shape, generator=generator).to(scene.own)
        return to_all(scene.before + self.noise * noise, scene), memory


@dataclass(frozen=True, slots=True)
class _Imitated:
    """State of a mimic: the node it copies, or the search for it.

    Args:
        axis: (d,) along which the honest differ most, so far.
        seen: rounds looked at.
        sums: of each honest node's number the sum of its projections.
        chosen: number of the one, None while looking.
    """

    axis: Tensor
    seen: int
    sums: dict[int, float]
    chosen: int | None


@dataclass(frozen=True, slots=True)
class Mimic:
    """The vector of one honest node, always the same one: its data count more than those of others.

    In the first `warmup` rounds attackers look for the axis along which the honest differ most, a step of power iteration a round; then
    they take the node furthest along it. Without warm-up it is the first they know. In rounds without its vector, μ is sent.

    Source: Karimireddy, He and Jaggi 2022, Byzantine-robust learning on heterogeneous datasets via bucketing (arXiv:2006.09365), B.

    Args:
        warmup: rounds, >= 0.
    """

    warmup: int = 0
    targets: ClassVar[Target] = "vector"

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise ValueError(f"warmup must be >= 0, got {self.warmup}")

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """The same to all; the first one's vector while it looks. Draws d numbers in the first round of a warm-up."""
        held: _Imitated | None = memory
        if held is None:
            axis = torch.randn(scene.own.shape, generator=generator).to(scene.own) if self.warmup else scene.own[:0]
            held = _Imitated(axis, 0, {}, None if self.warmup else int(scene.members[0]))
        chosen = held.chosen
        if chosen is None:
            held = self._look(held, scene)
            chosen = held.chosen if held.chosen is not None else int(scene.members[0])
        rows = (scene.members == chosen).nonzero().flatten()
        message = scene.honest[rows[0]] if len(rows) else mean(scene.honest)
        return to_all(message, scene), held

    def _look(self, held: _Imitated, scene: Scene) -> _Imitated:
        away = scene.honest - mean(scene.honest)
        turned = away.T @ (away @ held.axis)
        axis = turned / turned.norm() if turned.norm() > 0 else held.axis / held.axis.norm()
        axis = axis + held.axis * held.seen / (held.seen + 1) if held.seen else axis
        axis = axis / axis.norm()
        sums = dict(held.sums)
        for member, along in zip(scene.members.tolist(), (away @ axis).tolist(), strict=True):
            sums[member] = sums.get(member, 0.0) + along
        seen = held.seen + 1
        chosen = max(sorted(sums), key=lambda member: abs(sums[member])) if seen >= self.warmup else None
        return _Imitated(axis, seen, sums, chosen)


def _not_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{name} must be >= 0, got {value}")
