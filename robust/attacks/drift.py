"""Forged directions of drift tracking with honest models: what moves flows, which corrections accumulate, and no loss pulls back.

The scene's vectors are directions z = ḡ − c; ‖g‖ is the mean norm of the honest gradients, or that of their mean where they are not known.
A correction grows by what a peer's z lies below our own, so a z against the gradient bends steps uphill.

Shapes: d parameters, h honest vectors, r receivers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from starling.gossip.lazy_torch import Generator, Tensor
from starling.robust.attacks.api import Formula, Scene, Target
from starling.robust.attacks.statistics import agreed_direction, gradient_norm, positive, uphill


def constant(scale: float = 10.0) -> Formula:
    """z_i − scale · ‖g‖ · ḡ/‖ḡ‖: each exchange bends the receiver's steps the same way, uphill, whatever was there before.

    Args:
        scale: in gradients, > 0.
    """
    positive("scale", scale)
    return Formula(lambda scene, _: scene.receivers - scale * gradient_norm(scene) * uphill(scene), "drift")


@dataclass(frozen=True, slots=True)
class Resonance:
    """z_i ± scale · ‖g‖ · u, whose sign turns after every `turn` messages; u is one random unit vector of all attackers.

    Between two turns a flow goes from one of its limits to the other, and models follow.

    Args:
        scale: in gradients, > 0.
        turn: messages, >= 1.
    """

    scale: float = 10.0
    turn: int = 8
    targets: ClassVar[Target] = "drift"

    def __post_init__(self) -> None:
        positive("scale", self.scale)
        positive("turn", self.turn)

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """The memory counts messages."""
        sent: int = memory or 0
        side = 1.0 if sent // self.turn % 2 == 0 else -1.0
        return scene.receivers + side * self.scale * gradient_norm(scene) * agreed_direction(scene), sent + 1
