"""Clock pace: which edges nodes have, and whom each visits in a slot, for all nodes at once.

The rules are those of `gossip.overlay.sticky.StickyEdges` and `gossip.exchange.slots`, with rings that are computed once for everybody.

Shapes: N rows, of which some are believed alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from gossip.exchange.admission import MAX_SERVED
from gossip.overlay.ranks import ranked
from gossip.overlay.sticky import SPARE_EDGES
from gossip.rng import generator
from gossip.simulate.meetings import Meetings


@dataclass(slots=True)
class Visits:
    """Each node visits the edge that it has not visited for longest.

    Args:
        peers: (N) peer id of each row.
        degree: edges to aim for.
        salt: of the rings.
        theta: mixing weight of every exchange.
        seed: decides who comes first within a slot.
    """

    peers: Sequence[str]
    degree: int
    salt: bytes
    theta: float
    seed: int
    edges: dict[int, set[int]] = field(init=False, default_factory=dict)
    """Rows that each living row has an edge to; the same at both ends."""
    _visited: dict[tuple[int, int], int] = field(init=False, default_factory=dict)

    def update(self, alive: NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
        """Members came or went -> pairs of them that close their edge: no targets any more, and beyond what a node keeps."""
        rows = {self.peers[row]: row for row in np.flatnonzero(alive).tolist()}
        orders = [
            [rows[peer] for peer in ranked(rows, self.salt + bytes((ring,)))] for ring in range((self.degree + 1) // 2)
        ]
        self.edges = {row: {other for other in self.edges.get(row, ()) if alive[other]} for row in rows.values()}
        self._visited = {pair: slot for pair, slot in self._visited.items() if alive[pair[0]] and alive[pair[1]]}
        targets = _targets(orders, everybody=len(rows) - 1 <= self.degree)
        for row, others in targets.items():
            self.edges[row] |= others
        seats = [{row: seat for seat, row in enumerate(order)} for order in orders]
        closed = []
        for row in sorted(self.edges):
            for other in self._excess(row, targets[row], seats):
                self.edges[row].discard(other)
                self.edges[other].discard(row)
                closed.append((row, other))
        return tuple(closed)

    def at(self, slot: int) -> Meetings:
        """The visits of a slot, in the order in which they happen: at most one that a node makes, few that it answers."""
        rows = sorted(self.edges)
        served, going = dict.fromkeys(rows, 0), dict[int, int]()
        pairs = []
        for place in torch.randperm(len(rows), generator=generator(self.seed, "visits", slot)).tolist():
            row = rows[place]
            other = min(
                self.edges[row], key=lambda peer: (self._visited.get((row, peer), -1), self.peers[peer]), default=None
            )
            if other is None:
                continue
            self._visited[row, other] = slot
            if going.get(other) == row:
                continue  # it is just visiting us: one exchange serves both
            if served[other] < MAX_SERVED:
                served[other] += 1
                going[row] = other
                pairs.append((row, other))
        ends, theta = np.array(pairs, dtype=np.int64).reshape(-1, 2), np.full(len(pairs), self.theta)
        return Meetings(ends[:, 0].copy(), ends[:, 1].copy(), theta, theta)

    def _excess(self, row: int, targets: set[int], seats: Sequence[dict[int, int]]) -> list[int]:
        """Strangers beyond what is kept, those first that sit furthest away in every ring."""
        excess = len(self.edges[row]) - self.degree - SPARE_EDGES
        if excess <= 0:
            return []

        def away(other: int) -> int:
            apart = [abs(seat[row] - seat[other]) for seat in seats]
            return min(min(between, len(self.edges) - between) for between in apart)

        strangers = self.edges[row] - targets
        return sorted(strangers, key=lambda other: (-away(other), self.peers[other]))[:excess]


def _targets(orders: Sequence[Sequence[int]], *, everybody: bool) -> dict[int, set[int]]:
    """Who sits beside whom in any ring; all of them where everybody fits into the degree."""
    first = orders[0]
    if everybody:
        return {row: set(first) - {row} for row in first}
    beside: dict[int, set[int]] = {row: set() for row in first}
    for order in orders:
        for row, following in zip(order, [*order[1:], order[0]], strict=True):
            if row != following:
                beside[row].add(following)
                beside[following].add(row)
    return beside
