"""Overlays in which a node receives from at most one peer per round.

Shapes: n members, ranks 0 … n − 1, tau = ⌈log2 n⌉.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from starling.gossip.overlay.api import doublings
from starling.gossip.seeds import derive


@dataclass(frozen=True, slots=True)
class OnePeerExponential:
    """In round t rank i receives from i + 2^(t mod tau) mod n with weight 1/2. Directed.

    Exact average in any tau consecutive rounds if and only if n is a power of two; otherwise one period leaves at most
    a quarter of the disagreement (measured for n <= 63).
    Source: Ying et al. 2021, "Exponential Graph is Provably Efficient for Decentralized Deep Training".
    """

    symmetric: ClassVar[bool] = False

    def shifts(self, n: int, round: int) -> Mapping[int, float]:
        """{2^(round mod tau): 1/2}."""
        return {1 << round % doublings(n): 0.5} if n > 1 else {}

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """One entry."""
        return {(rank + shift) % n: weight for shift, weight in self.shifts(n, round).items()}

    def period(self, n: int) -> int:
        """Tau."""
        return max(1, doublings(n))


@dataclass(frozen=True, slots=True)
class Hypercube:
    """In round t rank i pairs with i XOR 2^(t mod tau), weight 1/2.

    Exact average in any tau consecutive rounds. Defined for powers of two only.
    """

    symmetric: ClassVar[bool] = True

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """One entry.

        Raises:
            ValueError: n is not a power of two.
        """
        tau = doublings(n)
        if n != 1 << tau:
            raise ValueError(f"hypercube needs a power of two of members, got {n}: the next one is {1 << tau}")
        return {rank ^ 1 << round % tau: 0.5} if n > 1 else {}

    def period(self, n: int) -> int:
        """Tau."""
        return max(1, doublings(n))


@dataclass(frozen=True, slots=True)
class RandomMatching:
    """In each round a uniformly random perfect matching, weight 1/2; one node idles if n is odd.

    The expected squared disagreement halves per round, whatever n. Every node draws the same matching from (seed, n,
    round).
    Source: the pairwise averaging of Boyd et al. 2006, "Randomized Gossip Algorithms", a whole matching at a time.

    Args:
        seed: root seed of the swarm, 0 <= seed < 2**63.
    """

    seed: int
    symmetric: ClassVar[bool] = True

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """One entry, or none for the idle node."""
        partner = int(_partners(self.seed, n, round)[rank])
        return {partner: 0.5} if partner != rank else {}

    def period(self, n: int) -> None:
        """Never repeats."""
        return


@lru_cache(maxsize=8)
def _partners(seed: int, n: int, round: int) -> NDArray[np.int64]:
    """(n,) partner of each rank, itself when idle.

    Shuffles by sorting hash output: unlike a generator's permutation it is the same in every version of every library.
    """
    stream = hashlib.shake_256(derive(seed, "matching", n, round).to_bytes(8, "little")).digest(8 * n)
    order = np.argsort(np.frombuffer(stream, dtype="<u8"), kind="stable")
    partners = np.arange(n)
    left, right = order[0 : n - 1 : 2], order[1::2]
    partners[left], partners[right] = right, left
    return partners
