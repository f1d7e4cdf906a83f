"""Overlays that are the same in every round.

Shapes: n members, ranks 0 … n − 1, tau = ⌈log2 n⌉.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from starling.gossip.overlay.api import doublings


@dataclass(frozen=True, slots=True)
class Ring:
    """Rank i and its two neighbors i ± 1 mod n, each with weight 1/3 (Metropolis–Hastings).

    Spectral gap (2/3)(1 − cos(2π/n)), about 13/n²: the slowest connected overlay, and the cheapest to reason about.
    """

    symmetric: ClassVar[bool] = True

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Two entries; one of weight 1/2 for n = 2, none for n = 1."""
        others = {(rank + 1) % n, (rank - 1) % n} - {rank}
        return dict.fromkeys(sorted(others), 1.0 / (1 + len(others)))

    def period(self, n: int) -> int:
        """1."""
        return 1


@dataclass(frozen=True, slots=True)
class StaticExponential:
    """Rank i receives from i + 2^j mod n for every j < tau, each with weight 1/(tau + 1). Directed.

    Spectral gap 2/(tau + 1) for even n, larger for odd n.
    Source: Ying et al. 2021, "Exponential Graph is Provably Efficient for Decentralized Deep Training".
    """

    symmetric: ClassVar[bool] = False

    def shifts(self, n: int, round: int) -> Mapping[int, float]:
        """{2^j: 1/(tau + 1)}."""
        tau = doublings(n)
        return {1 << j: 1.0 / (tau + 1) for j in range(tau)}

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Tau entries."""
        return {(rank + shift) % n: weight for shift, weight in self.shifts(n, round).items()}

    def period(self, n: int) -> int:
        """1."""
        return 1


@dataclass(frozen=True, slots=True)
class Complete:
    """Complete graph, weight 1/n: the exact average in one round, at n − 1 messages a node."""

    symmetric: ClassVar[bool] = True

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """N − 1 entries."""
        return {other: 1.0 / n for other in range(n) if other != rank}

    def period(self, n: int) -> int:
        """1."""
        return 1


@dataclass(frozen=True, slots=True)
class Alone:
    """No edges: for local SGD between global averages (`starling.gossip.overlay.periodic`), and as the zero of a table."""

    symmetric: ClassVar[bool] = True

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Empty."""
        return {}

    def period(self, n: int) -> int:
        """1."""
        return 1
