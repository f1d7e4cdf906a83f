"""The lasting edges of a whole swarm, computed for all nodes at once and only where something changed.

`gossip.overlay.sticky.StickyEdges` is one node's view: each computes the same rings over the living and looks up its neighbors. Here the
rings are computed once for all. All nodes learn of a change at once; those whose neighbors change look in order of peer id, each
with the edges that earlier ones opened and closed, until nothing changes.

Shapes: N rows, n of them alive, R rings.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from starling.gossip.overlay.ranks import ranked
from starling.gossip.overlay.sticky import SPARE_EDGES
from starling.node.simulate.matrix.edges import Pair


@dataclass(frozen=True, slots=True)
class Moved:
    """Edges opened, closed and lost by a change of members. Pairs are (row, row), the one that acted first in front."""

    opened: tuple[Pair, ...]
    closed: tuple[Pair, ...]  # edges that were closed in order
    void: tuple[Pair, ...]  # edges of which the other end has left


@dataclass(slots=True)
class Rings:
    """Edges of all nodes, as the node's membership protocol opens and closes them."""

    peers: Sequence[str]  # (N) peer id of each row
    degree: int  # edges to aim for, >= 1; an odd one aims for one more
    salt: bytes
    edges: list[set[int]] = field(init=False)  # (N) the rows that each row has an edge with
    alive: int = 0  # members
    _rings: list[NDArray[np.int64]] = field(init=False)  # (R) all rows in each ring's order
    _living: NDArray[np.bool_] = field(init=False)  # (N,)
    _seats: NDArray[np.int64] = field(init=False)  # (R, N) number of living rows before each row
    # (2R, N) the next and the previous living row; -1 for rows that are not alive
    _beside: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        if self.degree < 1:
            raise ValueError(f"degree must be >= 1, got {self.degree}")
        rows, count = {peer: row for row, peer in enumerate(self.peers)}, (self.degree + 1) // 2
        orders = (ranked(self.peers, self.salt + bytes((ring,))) for ring in range(count))
        self._rings = [np.array([rows[peer] for peer in order], np.int64) for order in orders]
        self.edges, self._living = [set() for _ in self.peers], np.zeros(len(self.peers), bool)
        self._seats = np.zeros((count, len(self.peers)), np.int64)
        self._beside = np.full((2 * count, len(self.peers)), -1)

    def change(self, gone: Iterable[int], come: Iterable[int]) -> Moved:
        """Living rows go, then others come."""
        few, void = self.alive <= self.degree + 1, list[Pair]()
        for row in gone:
            void += [(other, row) for other in sorted(self.edges[row])]
            for other in self.edges[row]:
                self.edges[other].discard(row)
            self.edges[row], self._living[row] = set(), False
        self._living[list(come)] = True
        before, self._beside = self._beside, np.full_like(self._beside, -1)
        for ring, order in enumerate(self._rings):
            living = order[self._living[order]]
            self.alive = len(living)
            self._seats[ring, living] = np.arange(self.alive)
            self._beside[2 * ring, living], self._beside[2 * ring + 1, living] = np.roll(living, -1), np.roll(living, 1)
        moved = (before != self._beside).any(axis=0) | few | (self.alive <= self.degree + 1)
        opened, closed = self._look(np.flatnonzero(moved & self._living).tolist())
        return Moved(tuple(opened), tuple(closed), tuple(void))

    def targets(self, row: int) -> tuple[int, ...]:
        """Rows that a living row would choose without history, the first ring's first."""
        beside: list[int] = self._beside[:, row].tolist()
        if self.alive - 1 <= self.degree:
            first = self._rings[0][self._living[self._rings[0]]]
            beside += np.roll(first, -self._seats[0, row]).tolist()
        return tuple(dict.fromkeys(other for other in beside if other != row))

    def _look(self, rows: Iterable[int]) -> tuple[list[Pair], list[Pair]]:
        """These rows look, and then all whose edges that changed, until nothing changes -> opened, closed."""
        opened, closed = list[Pair](), list[Pair]()
        while rows:
            changed = set[int]()
            for row in sorted(rows, key=self.peers.__getitem__):
                fresh = [other for other in self.targets(row) if other not in self.edges[row]]
                for other in fresh:  # targets are mutual: a target never refuses
                    self.edges[row].add(other)
                    self.edges[other].add(row)
                excess = self._excess(row)
                for other in excess:
                    self.edges[row].discard(other)
                    self.edges[other].discard(row)
                opened += [(row, other) for other in fresh]
                closed += [(row, other) for other in excess]
                changed.update(fresh)
            rows = changed
        return opened, closed

    def _excess(self, row: int) -> list[int]:
        """Return the edges to close: no targets and beyond the degree, furthest first."""
        excess = len(self.edges[row]) - self.degree - SPARE_EDGES
        if excess <= 0:
            return []
        strangers = list(self.edges[row].difference(self.targets(row)))
        apart = (self._seats[:, strangers] - self._seats[:, [row]]) % self.alive
        away = dict(zip(strangers, np.minimum(apart, self.alive - apart).min(axis=0).tolist(), strict=True))
        return sorted(strangers, key=lambda other: (-away[other], self.peers[other]))[:excess]
