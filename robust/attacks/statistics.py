"""Functions of the honest vectors that attacks use, and bounds of parameters.

Shapes: d parameters, h honest vectors.
"""

from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.rng import generator
from starling.robust.attacks.api import Scene

TINY = 1e-12
_LEAST_GRADIENT = 1e-9  # a shorter gradient has no direction


def mean(honest: Tensor) -> Tensor:
    """Return the mean (d,) of the honest vectors (h, d)."""
    return honest.mean(dim=0)


def deviation(honest: Tensor) -> Tensor:
    """Return (d,), standard deviation of each coordinate, with h − 1; 0 where h = 1."""
    return honest.std(dim=0) if len(honest) > 1 else torch.zeros_like(honest[0])


def radius(honest: Tensor) -> Tensor:
    """Median distance from the mean; the middle of the two where h is even."""
    away: Tensor = (honest - mean(honest)).norm(dim=1).sort().values
    middle: Tensor = (away[(len(away) - 1) // 2] + away[len(away) // 2]) / 2
    return middle


def uphill(scene: Scene) -> Tensor:
    """Return (d,), the unit vector along the gradient; 0 if the gradient is 0."""
    length: Tensor = scene.gradient.norm()
    return scene.gradient / length.clamp_min(_LEAST_GRADIENT)


def gradient_norm(scene: Scene) -> Tensor:
    """‖g‖: the mean norm of the honest gradients, or that of their mean where they are not known."""
    known = scene.gradient[None] if scene.gradients is None else scene.gradients
    norms: Tensor = known.norm(dim=1)
    return norms.mean()


def agreed_direction(scene: Scene) -> Tensor:
    """Return (d,), a random unit vector that all attackers share, the same in every round."""
    drawn = torch.randn(scene.own.numel(), generator=generator(scene.seed, "attack", "direction"))
    unit: Tensor = drawn / drawn.norm()
    return unit.to(scene.own)


def positive(name: str, value: float) -> None:
    """Raise ValueError unless value > 0."""
    if not value > 0:
        raise ValueError(f"{name} must be > 0, got {value}")


def not_negative(name: str, value: float) -> None:
    """Raise ValueError unless value >= 0."""
    if not value >= 0:
        raise ValueError(f"{name} must be >= 0, got {value}")
