"""Forged trackers with honest models. A tracker accumulates: one forged value may persist for ever.

The scene's vectors are trackers; ‖g‖ is the mean norm of the honest gradients, or that of their mean where they are not known.

Shapes: d parameters, h honest vectors, r receivers.
"""

from starling.gossip.lazy_torch import Tensor
from starling.robust.attacks.api import Formula, Scene
from starling.robust.attacks.statistics import agreed_direction, gradient_norm, mean, not_negative, positive, uphill


def constant(scale: float = 10.0) -> Formula:
    """ȳ − scale · ‖g‖ · ḡ/‖ḡ‖: a constant pull against the descent direction.

    Args:
        scale: in gradients, > 0.
    """
    positive("scale", scale)
    return Formula(lambda scene, _: mean(scene.honest) - scale * gradient_norm(scene) * uphill(scene), "tracker")


def negative() -> Formula:
    """Send −ȳ, the negated mean of the honest trackers."""
    return Formula(lambda scene, _: -mean(scene.honest), "tracker")


def rand(scale: float = 10.0) -> Formula:
    """`one_shot` in all rounds: ten gradients, in one random direction."""
    return one_shot(scale, 0, 0)


def small(scale: float = 0.5) -> Formula:
    """Return `rand` with half a gradient's length, which is inconspicuous."""
    return rand(scale)


def one_shot(scale: float = 100.0, begin: int = 20, lasts: int = 4) -> Formula:
    """y_i + scale · ‖g‖ · u in rounds begin to begin + lasts − 1, honest in all others; u is one random unit vector of all attackers.

    Args:
        scale: in gradients, > 0.
        begin: first round, >= 0.
        lasts: rounds, >= 0; 0: to the end.
    """
    positive("scale", scale)
    not_negative("begin", begin)
    not_negative("lasts", lasts)

    def message(scene: Scene, _: object) -> Tensor:
        if scene.round < begin or (lasts and scene.round >= begin + lasts):
            return scene.own
        return scene.receivers + scale * gradient_norm(scene) * agreed_direction(scene)

    return Formula(message, "tracker")
