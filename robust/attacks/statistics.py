"""What attackers compute of the honest vectors.

Shapes: d parameters, h honest vectors, r receivers.
"""

from __future__ import annotations

from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.rng import generator
from starling.robust.attacks.api import Scene

_NOTHING = 1e-9  # a direction shorter than this is none


def mean(honest: Tensor) -> Tensor:
    """(d,) of (h, d)."""
    return honest.mean(dim=0)


def deviation(honest: Tensor) -> Tensor:
    """(d,) standard deviation of each coordinate, with h − 1; 0 where h = 1."""
    return honest.std(dim=0) if len(honest) > 1 else torch.zeros_like(honest[0])


def distances(honest: Tensor) -> Tensor:
    """(h, h) between all pairs."""
    return torch.stack([(honest - row).norm(dim=1) for row in honest])


def radius(honest: Tensor) -> Tensor:
    """Median distance from the mean; the middle of the two where h is even."""
    away: Tensor = (honest - mean(honest)).norm(dim=1).sort().values
    middle: Tensor = (away[(len(away) - 1) // 2] + away[len(away) // 2]) / 2
    return middle


def uphill(scene: Scene) -> Tensor:
    """(d,) unit vector along the gradient; 0 where there is none."""
    length: Tensor = scene.gradient.norm()
    return scene.gradient / length.clamp_min(_NOTHING)


def agreed_direction(scene: Scene) -> Tensor:
    """(d,) a random unit vector that all attackers know, the same in every round."""
    drawn = torch.randn(scene.own.numel(), generator=generator(scene.seed, "attack", "direction"))
    unit: Tensor = drawn / drawn.norm()
    return unit.to(scene.own)


def to_all(message: Tensor, scene: Scene) -> Tensor:
    """(d,) -> (r, d), a view: all receivers get the same."""
    return message.expand_as(scene.receivers)
