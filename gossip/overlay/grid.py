"""Members on a grid, row by row: r × c with r the divisor of n nearest to its root from below.

A prime n has no such divisor but 1: then the grid is a path and the torus a ring, as slow as those. A number near n with
a divisor near its root is the remedy.

Shapes: n members, ranks 0 … n − 1, rank = row · c + column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from starling.gossip.overlay.weights import checked, edge_weight


@lru_cache(maxsize=64)
def sides(n: int) -> tuple[int, int]:
    """(r, c): r · c = n, r <= c, as near to each other as n allows; (1, n) for a prime n."""
    r = math.isqrt(n)
    while n % r:
        r -= 1
    return r, n // r


@dataclass(frozen=True, slots=True)
class Grid:
    """Rank i and its up to four neighbors on the grid, no wrap-around. A path for prime n.

    Spectral gap of order 1/n for a square grid, 1/n² for a path.

    Args:
        weights: a rule of `starling.gossip.overlay.weights`.
    """

    weights: str = "metropolis_hastings"

    def __post_init__(self) -> None:
        checked(self.weights)

    @property
    def symmetric(self) -> bool:
        """Unless weights are uniform: nodes at the border have fewer neighbors than those within."""
        return self.weights != "uniform"

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Two to four entries; fewer on a path or for n < 4."""
        r, c = sides(n)
        largest = min(2, r - 1) + min(2, c - 1)
        mine = self._around(rank, r, c)
        return {other: edge_weight(self.weights, len(mine), len(self._around(other, r, c)), largest) for other in mine}

    def period(self, n: int) -> int:
        """1."""
        return 1

    @staticmethod
    def _around(rank: int, r: int, c: int) -> list[int]:
        i, j = divmod(rank, c)
        steps = ((rank - c, i > 0), (rank - 1, j > 0), (rank + 1, j < c - 1), (rank + c, i < r - 1))
        return [other for other, there in steps if there]


@dataclass(frozen=True, slots=True)
class Torus:
    """The grid with its borders joined: every rank has four neighbors at weight 1/5 if r, c >= 3. A ring for prime n.

    All degrees are equal, so that all rules of `starling.gossip.overlay.weights` are one. Spectral gap of order 1/n for a square torus.
    """

    symmetric: ClassVar[bool] = True

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Four entries; fewer where r < 3."""
        r, c = sides(n)
        i, j = divmod(rank, c)
        others = {(i + 1) % r * c + j, (i - 1) % r * c + j, i * c + (j + 1) % c, i * c + (j - 1) % c} - {rank}
        return dict.fromkeys(sorted(others), 1.0 / (1 + len(others)))

    def period(self, n: int) -> int:
        """1."""
        return 1
