"""The edges of a swarm: names, incarnations, transaction numbers, and vectors stored per edge or per end of an edge.

Shapes: N rows, E numbers stored, h edges or ends.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from starling.gossip.mix.exchange_codec import edge
from starling.gossip.rng import generator
from starling.gossip.seeds import derive

Pair = tuple[int, int]
"""Rows of an edge, (initiator, responder): the one with the lesser peer id comes first. Of an end of an edge, (this row, the peer's)."""

_FIRST_SLOTS = 64


@dataclass(slots=True)
class Edge:
    """An open edge: its name, incarnation, the seed of its selectors, and the transactions begun."""

    name: str
    incarnation: int
    seed: int
    transactions: int = 0


@dataclass(slots=True)
class Edges:
    """The open edges of a swarm, with their seeds, incarnations and transaction numbers."""

    peers: Sequence[str]  # (N) peer id of each row
    seed: int
    rank: NDArray[np.int64] = field(init=False)  # (N,) place of each row in the order of peer ids
    open: dict[Pair, Edge] = field(default_factory=dict)
    _closed: dict[Pair, int] = field(default_factory=dict)
    _departures: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(set(self.peers)) != len(self.peers):
            raise ValueError("peers must differ from each other")
        order = sorted(range(len(self.peers)), key=self.peers.__getitem__)
        self.rank = np.empty(len(order), np.int64)
        self.rank[order] = np.arange(len(order))

    def begin(self, pair: Pair) -> Edge:
        """Return the next transaction of an edge; the first one opens it."""
        opened = self.open.get(pair)
        if opened is None:
            name = edge(*(self.peers[row] for row in pair))
            incarnation = sum(self._departures.get(row, 0) for row in pair) + self._closed.get(pair, 0)
            opened = self.open[pair] = Edge(name, incarnation, derive(self.seed, "mask", name, incarnation))
        opened.transactions += 1
        return opened

    def generator(self, opened: Edge, *labels: str) -> Generator:
        """Return the generator that the quantizer draws from in the current transaction."""
        return generator(self.seed, "quantize", opened.name, opened.incarnation, opened.transactions, *labels)

    def close(self, pair: Pair) -> None:
        """Close an edge properly: its next incarnation starts with empty memory."""
        if self.open.pop(pair, None) is not None:
            self._closed[pair] = self._closed.get(pair, 0) + 1

    def remove(self, row: int) -> list[Pair]:
        """Remove the edges of a departed node; return them. If it returns, all its edges have a new incarnation."""
        pairs = self.of(row)
        for pair in pairs:
            del self.open[pair]
        self._departures[row] = self._departures.get(row, 0) + 1
        return pairs

    def of(self, row: int) -> list[Pair]:
        """Return the edges of a row, in order of the other's peer id."""
        return sorted((pair for pair in self.open if row in pair), key=lambda pair: int(self.rank[sum(pair) - row]))

    def pair(self, one: int, other: int) -> Pair:
        """Return the pair with the initiator first."""
        return (one, other) if self.rank[one] < self.rank[other] else (other, one)


@dataclass(slots=True)
class EdgeVectors:
    """A vector (E,) for each edge or end of an edge that needed one, as rows of a tensor that grows."""

    initial: Tensor  # (E,) a new one
    rows: Tensor = field(init=False)  # (slots, E)
    _slots: dict[Pair, int] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = self.initial.new_empty((0, self.initial.numel()))

    def __iter__(self) -> Iterator[Pair]:
        """Iterate over the pairs that have a vector."""
        return iter(self._slots)

    def get(self, key: Pair) -> Tensor | None:
        """Return (E,), a view; None for a new one."""
        return self.rows[self._slots[key]] if key in self._slots else None

    def slots(self, keys: Sequence[Pair]) -> Tensor:
        """Return (h,), the rows of `rows` that belong to `keys`, made where missing."""
        for key in keys:
            if key not in self._slots:
                if not self._free:
                    used = len(self.rows)
                    grown = self.rows.new_empty((max(_FIRST_SLOTS, 2 * used), self.initial.numel()))
                    grown[:used], self.rows = self.rows, grown
                    self._free = list(range(len(grown) - 1, used - 1, -1))
                slot = self._slots[key] = self._free.pop()
                self.rows[slot] = self.initial
        return index([self._slots[key] for key in keys], self.rows)

    def read(self, keys: Sequence[Pair]) -> Tensor:
        """Return (h, E) of `keys`, a copy."""
        at = self.slots(keys)
        return self.rows[at]

    def pop(self, key: Pair) -> Tensor | None:
        """Remove an edge's vector and return a copy of it (E,)."""
        if key not in self._slots:
            return None
        slot = self._slots.pop(key)
        self._free.append(slot)
        return self.rows[slot].clone()


def index(numbers: Sequence[int] | NDArray[np.int64], like: Tensor) -> Tensor:
    """Whole numbers as an index, on the device of `like`."""
    return torch.as_tensor(np.asarray(numbers, np.int64), device=like.device)
