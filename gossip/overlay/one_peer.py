"""Overlays in which a node receives from at most one peer per round.

Shapes: n members, ranks 0 … n − 1, tau = ⌈log2 n⌉. `seed` is the root seed of the swarm, 0 <= seed < 2**63.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from starling.gossip.overlay.api import Aperiodic, Circulant, doublings
from starling.gossip.seeds import derive

Name = TypeVar("Name", int, str)


@dataclass(frozen=True, slots=True)
class OnePeerExponential(Circulant):
    """In round t rank i receives from i + 2^(t mod tau) mod n with weight 1/2. Directed.

    Exact average in any tau consecutive rounds if and only if n is a power of two; otherwise one period leaves at most
    a quarter of the disagreement (measured for n <= 63).
    Source: Ying et al. 2021, "Exponential Graph is Provably Efficient for Decentralized Deep Training".
    """

    symmetric: ClassVar[bool] = False

    def shifts(self, n: int, round: int) -> Mapping[int, float]:
        """Return {2^(round mod tau): 1/2}."""
        return {1 << round % doublings(n): 0.5} if n > 1 else {}

    def period(self, n: int) -> int:
        """Return tau."""
        return max(1, doublings(n))


@dataclass(frozen=True, slots=True)
class Hypercube:
    """In round t rank i pairs with i XOR 2^(t mod tau), weight 1/2.

    Exact average in any tau consecutive rounds. Defined for powers of two only.
    """

    symmetric: ClassVar[bool] = True

    @staticmethod
    def check(_agreed: Any) -> list[str]:
        """Return warnings for the manifest."""
        return ["overlay.kind: hypercube is defined for 2, 4, 8, 16 … members only; `--set overlay=base_k` takes any number"]

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Return one entry. Raises ValueError: n is not a power of two."""
        tau = doublings(n)
        if n != 1 << tau:
            raise ValueError(f"hypercube needs a power of two of members, got {n}: the next one is {1 << tau}")
        return {rank ^ 1 << round % tau: 0.5} if n > 1 else {}

    def period(self, n: int) -> int:
        """Return tau."""
        return max(1, doublings(n))


@dataclass(frozen=True, slots=True)
class RandomMatching(Aperiodic):
    """In each round a uniformly random perfect matching, weight 1/2; one node idles if n is odd.

    The expected squared disagreement halves per round, for every n. Every node draws the same matching from (seed, n, round).
    Source: the pairwise averaging of Boyd et al. 2006, "Randomized Gossip Algorithms", a whole matching at a time.
    """

    seed: int
    symmetric: ClassVar[bool] = True

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Return one entry, or none for the idle node."""
        partner = int(_partners(self.seed, n, round)[rank])
        return {partner: 0.5} if partner != rank else {}


@lru_cache(maxsize=8)
def _partners(seed: int, n: int, round: int) -> NDArray[np.int64]:
    """Return (n,), partner of each rank, itself when idle. Sorting hash output gives the same shuffle in every version of every library."""
    stream = hashlib.shake_256(derive(seed, "matching", n, round).to_bytes(8, "little")).digest(8 * n)
    order = np.argsort(np.frombuffer(stream, dtype="<u8"), kind="stable")
    partners = np.arange(n)
    left, right = order[0 : n - 1 : 2], order[1::2]
    partners[left], partners[right] = right, left
    return partners


@dataclass(frozen=True, slots=True)
class Rendezvous(Aperiodic):
    """A random matching by hashes, weight 1/2, in which a pair does not depend on third members; 28 % of the members are idle.

    Theory of operation. Every round gives each member a fresh hash; two members are the nearer, the smaller the exclusive or of their
    hashes. Two meet if each is nearest to the other. So one member more or less, or one that only some views contain, never breaks a pair
    of others: it takes away its own pair and adds at most one. In a schedule by rank one missing member shifts every later rank. The price:
    1/(2 ln 2) = 72 % of the members are matched in a round, and the expected squared disagreement shrinks to 0.64 per round for every n; a
    random matching halves it.

    Source: the highest random weight of Thaler and Ravishankar 1998, "Using Name-Based Mappings to Increase Hit Rates", with the exclusive
    or as the weight of a pair, so that n hashes suffice instead of n².
    """

    seed: int
    symmetric: ClassVar[bool] = True

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Return one entry, or none for an idle node."""
        partner = _nearest(self.seed, n, round).get(rank)
        return {} if partner is None else {partner: 0.5}


@lru_cache(maxsize=8)
def _nearest(seed: int, n: int, round: int) -> dict[int, int]:
    return matching(seed, range(n), round)


def matching(seed: int, names: Collection[Name], round: int) -> dict[Name, Name]:
    """Return the matching {a: b, b: a, …} of `Rendezvous` by permanent names, without idle members.

    Without member m the result is the same but for m's pair, which is gone, and at most one pair more.
    """
    hashed = sorted((derive(seed, "rendezvous", round, name), name) for name in names)
    keys = np.array([key for key, _ in hashed], dtype=np.uint64)
    # Nearest by exclusive or are neighbors in order, and of three in order no two gaps have the same highest bit.
    gaps = np.full(len(keys) + 1, np.iinfo(np.uint64).max, dtype=np.uint64)
    gaps[1:-1] = keys[1:] ^ keys[:-1]
    found: dict[Name, Name] = {}
    for index in np.flatnonzero((gaps[1:-1] < gaps[:-2]) & (gaps[1:-1] < gaps[2:])).tolist():
        one, other = hashed[index][1], hashed[index + 1][1]
        found[one], found[other] = other, one
    return found
