"""Attacks within the spread of the honest vectors: μ + γp with γ as large as stays inconspicuous.

Shapes: d parameters, h honest vectors, r receivers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar

from starling.gossip.lazy_torch import Generator, Tensor, torch
from starling.robust.attacks.api import Scene, Target
from starling.robust.attacks.statistics import deviation, distances, mean, to_all

DIRECTIONS = ("std", "unit", "sign")
_FURTHEST, _HALVINGS = 100.0, 20
_LEAST_Z = 1.5


def quantile(nodes: int, bad: int) -> float:
    """z_max = Φ⁻¹((n − f − s)/(n − f)), s = ⌊n/2⌋ + 1 − f: so far out, enough honest nodes are further out for a majority to side with us.

    −inf where no honest node has to, and +inf where all have.

    Args:
        nodes: n.
        bad: f, < n.
    """
    honest = nodes - bad
    share = (honest - max(0, nodes // 2 + 1 - bad)) / honest
    if not 0.0 < share < 1.0:
        return math.copysign(math.inf, share - 0.5)
    return NormalDist().inv_cdf(share)


@dataclass(frozen=True, slots=True)
class Alie:
    """μ − z·σ, "a little is enough"; z = max(z_max, 1.5) unless it is given.

    z_max, the original's, is 0.1 for 3 of 16 and 0.9 for 40 of 100 and does no harm; 1.5 is what libraries and our tables take.

    Source: Baruch, Baruch and Goldberg 2019 (arXiv:1902.06156).

    Args:
        z: standard deviations; 0: as above.
    """

    z: float = 0.0
    targets: ClassVar[Target] = "vector"

    def __post_init__(self) -> None:
        if not math.isfinite(self.z):
            raise ValueError(f"z must be finite, got {self.z}")

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """The same to all."""
        largest = quantile(scene.nodes, scene.bad)
        z = self.z or max(largest if math.isfinite(largest) else _LEAST_Z, _LEAST_Z)
        return to_all(mean(scene.honest) - z * deviation(scene.honest), scene), memory


@dataclass(frozen=True, slots=True)
class MinMax:
    """μ + γp with the largest γ in [0, 100] for which no honest vector is further away than two honest ones are from each other.

    p = −σ ("std"), −μ/‖μ‖ ("unit") or −sign μ ("sign"); 20 halvings of the interval.

    Source: Shejwalkar and Houmansadr 2021, Manipulating the Byzantine (NDSS), AGR-agnostic.

    Args:
        direction: p.
    """

    direction: str = "std"
    targets: ClassVar[Target] = "vector"

    def __post_init__(self) -> None:
        _check(self.direction)

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """The same to all."""
        limit = distances(scene.honest).max()
        return to_all(_furthest(scene.honest, self.direction, lambda away: bool(away.max() <= limit)), scene), memory


@dataclass(frozen=True, slots=True)
class MinSum:
    """As min-max, while the sum of squared distances to the honest is no more than the largest such sum of an honest one.

    Source: Shejwalkar and Houmansadr 2021, Manipulating the Byzantine (NDSS), AGR-agnostic.

    Args:
        direction: p.
    """

    direction: str = "std"
    targets: ClassVar[Target] = "vector"

    def __post_init__(self) -> None:
        _check(self.direction)

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """The same to all."""
        limit = distances(scene.honest).square().sum(dim=1).max()
        message = _furthest(scene.honest, self.direction, lambda away: bool(away.square().sum() <= limit))
        return to_all(message, scene), memory


def _check(direction: str) -> None:
    if direction not in DIRECTIONS:
        raise ValueError(f"direction must be one of {', '.join(DIRECTIONS)}, got {direction!r}")


def _furthest(honest: Tensor, direction: str, unseen: Callable[[Tensor], bool]) -> Tensor:
    """(d,) the largest step from μ whose distances (h,) from the honest are `unseen`."""
    middle = mean(honest)
    norm: Tensor = middle.norm()
    p = {
        "std": -deviation(honest),
        "unit": -middle / norm.clamp_min(torch.finfo(middle.dtype).tiny),
        "sign": -middle.sign(),
    }[direction]
    low, high = 0.0, _FURTHEST
    for _ in range(_HALVINGS):
        tried = (low + high) / 2
        if unseen((middle + tried * p - honest).norm(dim=1)):
            low = tried
        else:
            high = tried
    return middle + low * p
