"""Attacks that forge the optimiser state: the divisor of steps or their direction, while the model sent is honest.

Shapes: D numbers of the shared vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from starling.gossip.lazy_torch import Generator, Tensor
from starling.robust.attacks.api import Scene, Target
from starling.robust.attacks.statistics import positive


@dataclass(frozen=True, slots=True)
class Reversed:
    """Send −scale · m, so that steps of nodes that average it go uphill, and square · v: 0 makes their steps long, > 1 short.

    Args:
        scale: of m, > 0.
        square: of v, >= 0.
    """

    scale: float = 10.0
    square: float = 1.0
    targets: ClassVar[Target] = "memory"

    def __post_init__(self) -> None:
        positive("scale", self.scale)
        if not self.square >= 0.0:
            raise ValueError(f"square must be >= 0, got {self.square}")

    def forged(self, mean: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
        """Return the forged m and v (D,)."""
        return -self.scale * mean, self.square * square

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """Return honest vectors: models are not forged."""
        return scene.own.expand_as(scene.receivers), memory
