"""The lasting edges that all nodes of a swarm come to, computed for all of them at once and only where something changed.

`gossip.overlay.sticky.StickyEdges` is one node's view: each computes the same rings over the living and looks who is beside it. Here the
rings are computed once and kept; who comes or goes moves one place in each, and only those beside that place look again. All nodes
hear of a change at once; they look in order of peer id, each tells the other ends before the next looks, until nobody has
anything to do.

Shapes: N rows, n of them alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from starling.gossip.overlay.ranks import ranked
from starling.gossip.overlay.sticky import SPARE_EDGES
from starling.node.simulate.matrix.edges import Pair


@dataclass(frozen=True, slots=True)
class Moved:
    """What a change of members did to the edges. Pairs are (row, row), who acted first.

    Args:
        opened: edges that are new.
        closed: edges that were closed in order.
        void: edges whose other end is gone.
    """

    opened: tuple[Pair, ...]
    closed: tuple[Pair, ...]
    void: tuple[Pair, ...]


@dataclass(slots=True)
class Rings:
    """Edges of all nodes.

    Args:
        peers: (N) peer id of each row.
        degree: edges to aim for, >= 1; an odd one aims for one more.
        salt: of the swarm.
    """

    peers: Sequence[str]
    degree: int
    salt: bytes
    edges: list[set[int]] = field(init=False)
    """(N) the rows that each row has an edge with."""
    _order: list[NDArray[np.int64]] = field(init=False)  # (rings, N) rows in each ring's order
    _place: list[NDArray[np.int64]] = field(init=False)  # (rings, N) and back
    _living: list[NDArray[np.int64]] = field(init=False)  # (rings, n) places of the living, ascending
    _rank: NDArray[np.int64] = field(init=False)  # (N,) in the order of peer ids

    def __post_init__(self) -> None:
        if self.degree < 1:
            raise ValueError(f"degree must be >= 1, got {self.degree}")
        rows = {peer: row for row, peer in enumerate(self.peers)}
        self._order, self._place = [], []
        for ring in range((self.degree + 1) // 2):
            order = np.array([rows[peer] for peer in ranked(self.peers, self.salt + bytes((ring,)))], np.int64)
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            self._order.append(order)
            self._place.append(place)
        self._living = [np.zeros(0, np.int64) for _ in self._order]
        self.edges = [set() for _ in self.peers]
        self._rank = np.empty(len(self.peers), np.int64)
        self._rank[sorted(rows.values(), key=self.peers.__getitem__)] = np.arange(len(self.peers))

    @property
    def alive(self) -> int:
        """Members."""
        return len(self._living[0])

    def change(self, gone: Iterable[int], come: Iterable[int]) -> Moved:
        """Members go, then others come: everybody looks.

        Args:
            gone: rows alive.
            come: rows not alive.
        """
        few, touched, void = self.alive <= self.degree + 1, set[int](), list[Pair]()
        for row in gone:
            touched |= set(self.targets(row)) | self.edges[row]
            void += [(other, row) for other in sorted(self.edges[row])]
            for other in self.edges[row]:
                self.edges[other].discard(row)
            self.edges[row] = set()
            for ring, place in enumerate(self._place):
                living = self._living[ring]
                self._living[ring] = np.delete(living, np.searchsorted(living, place[row]))
        arrived = np.asarray(list(come), np.int64)
        for ring, place in enumerate(self._place):
            self._living[ring] = np.sort(np.concatenate((self._living[ring], place[arrived])))
        touched.update(arrived.tolist())
        for row in arrived.tolist():
            touched.update(self.targets(row))
        members = set(self._order[0][self._living[0]].tolist())
        if few or self.alive <= self.degree + 1:
            touched = members
        opened, closed = self._look(touched & members)
        return Moved(tuple(opened), tuple(closed), tuple(void))

    def targets(self, row: int) -> tuple[int, ...]:
        """Rows that a living row would choose had it no history, the first ring's first."""
        n = self.alive
        beside: list[int] = []
        for order, living, seat in self._seats(row):
            beside += [int(order[living[(seat + 1) % n]]), int(order[living[(seat - 1) % n]])]
        if n - 1 <= self.degree:
            order, living, seat = next(iter(self._seats(row)))
            beside += order[np.roll(living, -seat)][1:].tolist()
        return tuple(dict.fromkeys(other for other in beside if other != row))

    def _look(self, rows: set[int]) -> tuple[list[Pair], list[Pair]]:
        """These rows look, and then all whom that moved, until nobody moves."""
        opened, closed = list[Pair](), list[Pair]()
        while rows:
            moved = set[int]()
            for row in sorted(rows, key=self._rank.__getitem__):
                fresh = [other for other in self.targets(row) if other not in self.edges[row]]
                for other in fresh:  # who is our target has us for one: it never refuses
                    self.edges[row].add(other)
                    self.edges[other].add(row)
                excess = self._excess(row)
                for other in excess:
                    self.edges[row].discard(other)
                    self.edges[other].discard(row)
                opened += [(row, other) for other in fresh]
                closed += [(row, other) for other in excess]
                moved.update(fresh)
            rows = moved
        return opened, closed

    def _excess(self, row: int) -> list[int]:
        """Strangers beyond what is kept, furthest first."""
        excess = len(self.edges[row]) - self.degree - SPARE_EDGES
        if excess <= 0:
            return []
        strangers, n = self.edges[row].difference(self.targets(row)), self.alive
        away = dict.fromkeys(strangers, n)
        for ring, (_, living, seat) in enumerate(self._seats(row)):
            for other in strangers:
                apart = (int(np.searchsorted(living, self._place[ring][other])) - seat) % n
                away[other] = min(away[other], apart, n - apart)
        return sorted(strangers, key=lambda other: (-away[other], self._rank[other]))[:excess]

    def _seats(self, row: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], int]]:
        """In each ring: rows by place, places of the living, and which of those is this row's."""
        for order, place, living in zip(self._order, self._place, self._living, strict=True):
            yield order, living, int(np.searchsorted(living, place[row]))
