"""Clock pace: whom each node visits in a slot, by the rule of `starling.gossip.exchange.slots`, for all of them at once.

Shapes: N rows, of which some are members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from starling.gossip.exchange.verdicts import MAX_SERVED
from starling.gossip.rng import generator
from starling.node.simulate.matrix.rings import Moved, Rings
from starling.node.simulate.matrix.schedule import Meetings


@dataclass(slots=True)
class Visits:
    """Each node visits the lasting edge that it has not visited for longest.

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
    rings: Rings = field(init=False)
    _members: NDArray[np.bool_] = field(init=False)
    _visited: dict[tuple[int, int], int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.rings = Rings(self.peers, self.degree, self.salt)
        self._members = np.zeros(len(self.peers), dtype=bool)

    def update(self, members: NDArray[np.bool_]) -> Moved:
        """Members (N,) came or went -> what became of edges."""
        gone = np.flatnonzero(self._members & ~members).tolist()
        come = np.flatnonzero(members & ~self._members).tolist()
        self._members = members.copy()
        self._visited = {pair: slot for pair, slot in self._visited.items() if members[pair[0]] and members[pair[1]]}
        return self.rings.change(gone, come)

    def at(self, slot: int) -> Meetings:
        """The visits of a slot, in the order in which they happen: at most one that a node makes, few that it answers."""
        rows = np.flatnonzero(self._members)
        order = torch.randperm(len(rows), generator=generator(self.seed, "visits", slot)).numpy()
        served, going = dict.fromkeys(rows.tolist(), 0), dict[int, int]()
        pairs = []
        for row in rows[order].tolist():
            other = self._next(row)
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

    def _next(self, row: int) -> int | None:
        edges = self.rings.edges[row]
        return min(edges, key=lambda other: (self._visited.get((row, other), -1), self.peers[other]), default=None)
