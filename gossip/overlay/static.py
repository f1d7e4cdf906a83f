"""Overlays that are the same in every round.

Shapes: n members, ranks 0 … n − 1, tau = ⌈log2 n⌉. On a grid of r × c members rank = row · c + column, with r the divisor of n nearest
to its root from below. A prime n has no such divisor but 1: then the grid is a path and the torus a ring, as slow as those.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from starling.gossip.bounds import WeightRule, parameters
from starling.gossip.overlay.api import Circulant, Static, doublings
from starling.gossip.overlay.weights import DegreeWeighted, edge_weight


def _evenly(others: Collection[int]) -> dict[int, float]:
    """Equal weights for all and ourselves: Metropolis–Hastings where all degrees are equal."""
    return dict.fromkeys(sorted(others), 1.0 / (1 + len(others)))


@dataclass(frozen=True, slots=True)
class Ring(Static):
    """Rank i and its two neighbors i ± 1 mod n, each with weight 1/3; 1/2 for n = 2.

    Spectral gap (2/3)(1 − cos(2π/n)), about 13/n²: the slowest connected overlay, and the cheapest to reason about.
    """

    symmetric: ClassVar[bool] = True

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Return two entries; fewer for n < 3."""
        return _evenly({(rank + 1) % n, (rank - 1) % n} - {rank})


@dataclass(frozen=True, slots=True)
class StaticExponential(Circulant, Static):
    """Rank i receives from i + 2^j mod n for every j < tau, each with weight 1/(tau + 1). Directed.

    Spectral gap 2/(tau + 1) for even n, larger for odd n.
    Source: Ying et al. 2021, "Exponential Graph is Provably Efficient for Decentralized Deep Training".
    """

    symmetric: ClassVar[bool] = False

    def shifts(self, n: int, round: int) -> Mapping[int, float]:
        """Return {2^j: 1/(tau + 1)}."""
        tau = doublings(n)
        return {1 << j: 1.0 / (tau + 1) for j in range(tau)}


@dataclass(frozen=True, slots=True)
class Complete(Static):
    """Complete graph, weight 1/n: the exact average in one round, at n − 1 messages per node."""

    symmetric: ClassVar[bool] = True

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Return n − 1 entries."""
        return {other: 1.0 / n for other in range(n) if other != rank}


@dataclass(frozen=True, slots=True)
class Alone(Static):
    """No edges: for local SGD between global averages (`starling.gossip.overlay.periodic`), and as a baseline."""

    symmetric: ClassVar[bool] = True

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Return an empty row."""
        return {}


@lru_cache(maxsize=64)
def sides(n: int) -> tuple[int, int]:
    """Return (r, c): r · c = n, r <= c, as near to each other as n allows; (1, n) for a prime n."""
    r = math.isqrt(n)
    while n % r:
        r -= 1
    return r, n // r


@parameters
class Grid(DegreeWeighted, Static):
    """Rank i and its up to four neighbors on the grid, no wrap-around. A path for prime n.

    Spectral gap of order 1/n for a square grid, 1/n² for a path.

    Args:
        weights: a rule of `starling.gossip.overlay.weights`; "uniform" is not symmetric, as nodes at the border have fewer neighbors.
    """

    weights: WeightRule = "metropolis_hastings"

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Two to four entries; fewer on a path or for n < 4."""
        r, c = sides(n)
        largest = min(2, r - 1) + min(2, c - 1)
        mine = self._around(rank, r, c)
        return {other: edge_weight(self.weights, len(mine), len(self._around(other, r, c)), largest) for other in mine}

    @staticmethod
    def _around(rank: int, r: int, c: int) -> list[int]:
        i, j = divmod(rank, c)
        steps = ((rank - c, i > 0), (rank - 1, j > 0), (rank + 1, j < c - 1), (rank + c, i < r - 1))
        return [other for other, exists in steps if exists]


@dataclass(frozen=True, slots=True)
class Torus(Static):
    """The grid with its borders joined: every rank has four neighbors at weight 1/5 if r, c >= 3. A ring for prime n.

    Spectral gap of order 1/n for a square torus.
    """

    symmetric: ClassVar[bool] = True

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Return four entries; fewer if r < 3."""
        r, c = sides(n)
        i, j = divmod(rank, c)
        return _evenly({(i + 1) % r * c + j, (i - 1) % r * c + j, i * c + (j + 1) % c, i * c + (j - 1) % c} - {rank})
