"""Members and overlay of a swarm by themselves: no models, so that tens of thousands fit.

Shapes: N rows, n of them alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from starling.gossip.overlay.api import Overlay
from starling.gossip.overlay.ranks import digest
from starling.node.simulate.matrix.faults import Faults, churn
from starling.node.simulate.matrix.rings import Moved, Rings
from starling.node.simulate.matrix.schedule import Meetings, Schedule


@dataclass(frozen=True, slots=True)
class Round:
    """What a round came to.

    Args:
        number: of the round.
        members: alive in it.
        view: digest of the member list, 16 bytes.
        meetings: how many.
        joined: nodes that came before it.
        crashed: nodes that went.
        opened: lasting edges that were opened for it.
        closed: lasting edges that were closed in order.
        void: lasting edges lost with who went.
        degree: lasting edges of a node, mean.
        most: of the node that has most.
    """

    number: int
    members: int
    view: bytes
    meetings: int
    joined: int
    crashed: int
    opened: int
    closed: int
    void: int
    degree: float
    most: int


@dataclass(slots=True)
class Crowd:
    """Members, their ranks, their meetings and their lasting edges.

    Args:
        peers: (N) peer id of each row.
        alive: (N,) bool, who begins.
        overlay: whom they meet.
        degree: lasting edges to aim for.
        salt: of ranks and rings.
    """

    peers: Sequence[str]
    alive: NDArray[np.bool_]
    overlay: Overlay
    degree: int
    salt: bytes
    rings: Rings = field(init=False)
    view: bytes = field(init=False)
    """Digest of the member list."""
    _used: NDArray[np.bool_] = field(init=False)
    _schedule: Schedule = field(init=False)

    def __post_init__(self) -> None:
        self.alive = self.alive.copy()
        self._used = self.alive.copy()
        self._schedule = Schedule(self.overlay, self.peers, self.salt)
        self.rings = Rings(self.peers, self.degree, self.salt)
        self.rings.change((), np.flatnonzero(self.alive).tolist())
        self.view = self._digest()

    def change(self, gone: Sequence[int], come: Sequence[int]) -> Moved:
        """Rows alive go, others come."""
        moved = self.rings.change(gone, come)
        self.alive[list(gone)] = False
        self.alive[list(come)] = self._used[list(come)] = True
        if gone or come:
            self.view = self._digest()
        return moved

    def meetings(self, round: int) -> Meetings:
        """Of the overlay, among the living."""
        return self._schedule.at(round, self.alive)

    def run(self, faults: Faults, seed: int, rounds: int) -> Iterator[Round]:
        """Rounds under churn, one at a time.

        Args:
            faults: of which only crashes and joins count.
            seed: of the run.
            rounds: how many.
        """
        for number in range(rounds):
            change = churn(faults, seed, number, torch.from_numpy(self.alive), torch.from_numpy(self._used))
            moved = self.change(change.crashed, [row for row, _ in change.joined])
            degrees = [len(self.rings.edges[row]) for row in np.flatnonzero(self.alive).tolist()]
            yield Round(
                number, self.rings.alive, self.view, len(self.meetings(number)), len(change.joined), len(change.crashed),
                len(moved.opened), len(moved.closed), len(moved.void), sum(degrees) / len(degrees), max(degrees),
            )  # fmt: skip

    def _digest(self) -> bytes:
        return digest(self.peers[row] for row in np.flatnonzero(self.alive).tolist())
