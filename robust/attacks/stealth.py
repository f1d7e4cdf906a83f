"""Attacks within the spread of the honest vectors: μ + γp with γ as large as stays inconspicuous.

Shapes: d parameters, h honest vectors.
"""

import math
from collections.abc import Callable
from statistics import NormalDist

from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.attacks.api import Formula, Scene
from starling.robust.attacks.statistics import deviation, mean

DIRECTIONS = ("std", "unit", "sign")
_FURTHEST, _HALVINGS = 100.0, 20
_LEAST_Z = 1.5


def quantile(nodes: int, f: int) -> float:
    """z_max = Φ⁻¹((n − f − s)/(n − f)) with s = ⌊n/2⌋ + 1 − f: so many honest nodes are farther out, and a majority with the attackers.

    −inf where no honest node has to, and +inf where all have.

    Args:
        nodes: n.
        f: attackers, < n.
    """
    honest = nodes - f
    share = (honest - max(0, nodes // 2 + 1 - f)) / honest
    if not 0.0 < share < 1.0:
        return math.copysign(math.inf, share - 0.5)
    return NormalDist().inv_cdf(share)


def alie(z: float = 0.0) -> Formula:
    """μ − z·σ, "a little is enough"; z = max(z_max, 1.5) unless it is given.

    The original's z_max is 0.1 for 3 of 16 and 0.9 for 40 of 100 and does no harm; 1.5 is the value of libraries and of our tables.

    Source: Baruch, Baruch and Goldberg 2019 (arXiv:1902.06156).

    Args:
        z: standard deviations; 0: as above.
    """
    if not math.isfinite(z):
        raise ValueError(f"z must be finite, got {z}")

    def message(scene: Scene, _: object) -> Tensor:
        largest = quantile(scene.nodes, scene.attackers)
        deviations = z or max(largest if math.isfinite(largest) else _LEAST_Z, _LEAST_Z)
        return mean(scene.honest) - deviations * deviation(scene.honest)

    return Formula(message)


def min_max(direction: str = "std") -> Formula:
    """μ + γp with the largest γ in [0, 100] for which no honest vector is farther away than two honest ones are from each other.

    p = −σ ("std"), −μ/‖μ‖ ("unit") or −sign μ ("sign"); 20 halvings of the interval.

    Source: Shejwalkar and Houmansadr 2021, Manipulating the Byzantine (NDSS), AGR-agnostic.

    Args:
        direction: p.
    """
    return _furthest(direction, torch.amax)


def min_sum(direction: str = "std") -> Formula:
    """Like `min_max`, but bound the sum of squared distances to the honest vectors by the largest such sum of an honest vector."""
    return _furthest(direction, lambda distances, dim: distances.square().sum(dim=dim))


def _furthest(direction: str, measure: Callable[[Tensor, int], Tensor]) -> Formula:
    """Return the largest step from μ with a measure of its distances from the honest that some honest vector reaches."""
    if direction not in DIRECTIONS:
        raise ValueError(f"direction must be one of {', '.join(DIRECTIONS)}, got {direction!r}")

    def message(scene: Scene, _: object) -> Tensor:
        middle = mean(scene.honest)
        norm: Tensor = middle.norm()
        p = {"std": -deviation(scene.honest), "unit": -middle / norm.clamp_min(torch.finfo(middle.dtype).tiny), "sign": -middle.sign()}[
            direction
        ]
        limit = measure(torch.stack([(scene.honest - row).norm(dim=1) for row in scene.honest]), 1).max()
        low, high = 0.0, _FURTHEST
        for _ in range(_HALVINGS):
            tried = (low + high) / 2
            if bool(measure((middle + tried * p - scene.honest).norm(dim=1), 0) <= limit):
                low = tried
            else:
                high = tried
        return middle + low * p

    return Formula(message)
