"""Forged trackers with honest models. A tracker accumulates: one forged value may persist for ever.

The scene's vectors are trackers; ‖g‖ is the mean norm of the honest gradients, or that of their mean where they are not known.

Shapes: d parameters, h honest vectors, r receivers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from starling.gossip.lazy_torch import Generator, Tensor
from starling.robust.attacks.api import Scene, Target
from starling.robust.attacks.statistics import agreed_direction, mean, to_all, uphill


@dataclass(frozen=True, slots=True)
class TrackerConst:
    """ȳ − scale · ‖g‖ · ḡ/‖ḡ‖: a constant pull against the descent direction.

    Args:
        scale: in gradients, > 0.
    """

    scale: float = 10.0
    targets: ClassVar[Target] = "tracker"

    def __post_init__(self) -> None:
        _positive("scale", self.scale)

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """The same to all."""
        return to_all(mean(scene.honest) - self.scale * _norm(scene) * uphill(scene), scene), memory


@dataclass(frozen=True, slots=True)
class TrackerNeg:
    """−ȳ."""

    targets: ClassVar[Target] = "tracker"

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """The same to all."""
        return to_all(-mean(scene.honest), scene), memory


@dataclass(frozen=True, slots=True)
class TrackerShift:
    """y_i + scale · ‖g‖ · u in rounds begin to begin + lasts − 1, honest in all others; u is one random unit vector of all attackers.

    Args:
        scale: in gradients, > 0.
        begin: first round, >= 0.
        lasts: rounds; 0: to the end.
    """

    scale: float
    begin: int = 0
    lasts: int = 0
    targets: ClassVar[Target] = "tracker"

    def __post_init__(self) -> None:
        _positive("scale", self.scale)
        if min(self.begin, self.lasts) < 0:
            raise ValueError(f"begin and lasts must be >= 0, got {self.begin}, {self.lasts}")

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """Another for each receiver."""
        if scene.round < self.begin or (self.lasts and scene.round >= self.begin + self.lasts):
            return to_all(scene.own, scene), memory
        return scene.receivers + self.scale * _norm(scene) * agreed_direction(scene), memory


def rand(scale: float = 10.0) -> TrackerShift:
    """Ten gradients, in one random direction."""
    return TrackerShift(scale)


def small(scale: float = 0.5) -> TrackerShift:
    """Half a gradient: inconspicuous."""
    return TrackerShift(scale)


def one_shot(scale: float = 100.0, begin: int = 20, lasts: int = 4) -> TrackerShift:
    """A hundred gradients for four rounds, then honest."""
    return TrackerShift(scale, begin, lasts)


def _norm(scene: Scene) -> Tensor:
    known = scene.gradient[None] if scene.gradients is None else scene.gradients
    norms: Tensor = known.norm(dim=1)
    return norms.mean()


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be > 0, got {value}")
