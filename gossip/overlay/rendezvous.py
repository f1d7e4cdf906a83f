"""Rendezvous: a random matching by hashes, in which a pair does not depend on third members.

Theory of operation. Every round gives each member a fresh hash; two members are the nearer, the smaller the exclusive or
of their hashes. Two meet if each is nearest to the other. Whether they are depends on those two and on no other being
nearer, so a member more or less, or one that only some know of, never breaks a pair of others: it takes away its
own pair and adds at most one. In a schedule by rank one missing member shifts every later rank.

That has a price: 1/(2 ln 2) = 72 % of the members are matched in a round, not all.

Source: the highest random weight of Thaler and Ravishankar 1998, "Using Name-Based Mappings to Increase Hit Rates", with
the exclusive or as the weight of a pair, so that n hashes do instead of n².

Shapes: n members, ranks 0 … n − 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, TypeVar

import numpy as np

from starling.gossip.seeds import derive

Name = TypeVar("Name", int, str)


def meetings(seed: int, names: Collection[Name], round: int) -> dict[Name, Name]:
    """The matching {a: b, b: a, …}, without idle members.

    Without member m the result is the same but for m's pair, which is gone, and at most one pair more.

    Args:
        seed: root seed of the swarm, 0 <= seed < 2**63.
        names: members, each once, by a name that lasts: peer ids, or ranks that do not shift.
        round: >= 0.
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


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """In each round those two exchange whose hashes are nearest to one another, weight 1/2; 28 % are idle.

    The expected squared disagreement shrinks to 0.64 per round, whatever n, where a random matching, whose pairs all depend
    on all members, halves it.

    By rank: as long as ranks stay, a member more or less changes the pairs it is in. `meetings` does it by name.

    Args:
        seed: root seed of the swarm, 0 <= seed < 2**63.
    """

    seed: int
    symmetric: ClassVar[bool] = True

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """One entry, or none for an idle node."""
        partner = _of_ranks(self.seed, n, round).get(rank)
        return {} if partner is None else {partner: 0.5}

    def period(self, n: int) -> None:
        """Never repeats."""
        return


@lru_cache(maxsize=8)
def _of_ranks(seed: int, n: int, round: int) -> dict[int, int]:
    return meetings(seed, range(n), round)
