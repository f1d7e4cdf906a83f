"""What an edge is called, which life it is in and how often it was used: where the seeds of its exchanges come from.

Shapes: N rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from starling.gossip.mix.exchange_codec import edge
from starling.gossip.seeds import derive

Pair = tuple[int, int]
"""(initiator, responder): the row with the lesser peer id comes first."""


@dataclass(slots=True)
class Life:
    """One life of an edge.

    Args:
        name: of the edge.
        inc: incarnation.
        seed: of its selectors.
        seq: transactions begun.
        order: the permutation of blocks that `seed` gives, once it was needed.
    """

    name: str
    inc: int
    seed: int
    seq: int = 0
    order: NDArray[np.int64] | None = None


@dataclass(slots=True)
class Edges:
    """The edges in use.

    Args:
        peers: (N) peer id of each row.
        seed: the swarm's.
    """

    peers: Sequence[str]
    seed: int
    rank: NDArray[np.int64] = field(init=False)
    """(N,) place of each row in the order of peer ids."""
    _lives: dict[Pair, Life] = field(default_factory=dict)
    _around: list[set[int]] = field(init=False)
    _voided: dict[Pair, int] = field(default_factory=dict)
    _born: list[int] = field(init=False)

    def __post_init__(self) -> None:
        if len(set(self.peers)) != len(self.peers):
            raise ValueError("peers must differ from each other")
        order = sorted(range(len(self.peers)), key=self.peers.__getitem__)
        self.rank = np.empty(len(order), np.int64)
        self.rank[order] = np.arange(len(order))
        self._around = [set() for _ in self.peers]
        self._born = [0] * len(self.peers)

    def begin(self, pair: Pair) -> Life:
        """The next transaction of an edge; the first one makes the edge."""
        life = self._lives.get(pair)
        if life is None:
            i, j = pair
            name, inc = edge(self.peers[i], self.peers[j]), self._born[i] + self._born[j] + self._voided.get(pair, 0)
            life = self._lives[pair] = Life(name, inc, derive(self.seed, "mask", name, inc))
            self._around[i].add(j)
            self._around[j].add(i)
        life.seq += 1
        return life

    def chance(self, life: Life, *labels: str) -> int:
        """Seed of what the transaction under way rounds by."""
        return derive(self.seed, "quantize", life.name, life.inc, life.seq, *labels)

    def closed(self, pair: Pair) -> None:
        """In order: the next life begins from nothing."""
        if self._lives.pop(pair, None) is not None:
            i, j = pair
            self._around[i].discard(j)
            self._around[j].discard(i)
            self._voided[pair] = self._voided.get(pair, 0) + 1

    def gone(self, row: int) -> list[Pair]:
        """A node crashed -> its edges, which are no more. If it comes back, all its edges are in a new life."""
        pairs = list(self.of(row))
        for pair in pairs:
            del self._lives[pair]
        for other in self._around[row]:
            self._around[other].discard(row)
        self._around[row] = set()
        self._born[row] += 1
        return pairs

    def of(self, row: int) -> Iterator[Pair]:
        """The edges of a row, in order of the other's peer id."""
        for other in sorted(self._around[row], key=self.rank.__getitem__):
            yield self.pair(row, other)

    def pair(self, one: int, other: int) -> Pair:
        """Who initiates comes first."""
        return (one, other) if self.rank[one] < self.rank[other] else (other, one)
