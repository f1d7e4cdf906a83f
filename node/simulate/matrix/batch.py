"""Exchanges that happen at once, as their arithmetic sees them.

Shapes: N rows of a swarm, r rows of the table at hand, m exchanges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starling.gossip.api import Phase
from starling.node.simulate.matrix.edges import Pair
from starling.node.simulate.matrix.table import Table


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """Args:
    vectors: (r, D) the shared vectors, to be moved.
    asks: (r, D) what initiators read: `vectors`, unless what is pending elsewhere counts as done.
    answers: (r, D) what responders read, likewise.
    rows: (r,) int64, the swarm's row of each row of `vectors`.
    asking: (m,) int64, row in `vectors` of each initiator.
    answering: (m,) of each responder.
    pairs: (m) the same as rows of the swarm.
    forth: (m,) float64, weight that the initiator gives to what it receives.
    back: (m,) that the responder gives.
    phase: for gains.
    lost: (m,) nothing happens.
    unproven: (m,) only the initiator commits for now.
    forth_lost: (m,) of messages that are swapped one by one: the initiator's does not arrive.
    back_lost: (m,) likewise the responder's.
    """

    vectors: Table
    asks: Table
    answers: Table
    rows: NDArray[np.int64]
    asking: NDArray[np.int64]
    answering: NDArray[np.int64]
    pairs: Sequence[Pair]
    forth: NDArray[np.float64]
    back: NDArray[np.float64]
    phase: Phase
    lost: NDArray[np.bool_]
    unproven: NDArray[np.bool_]
    forth_lost: NDArray[np.bool_]
    back_lost: NDArray[np.bool_]

    def of(self, places: NDArray[np.int64], vectors: Table, rows: NDArray[np.int64]) -> Turn:
        """Some of the exchanges, on vectors of these rows (ascending) alone."""
        return Turn(
            vectors, vectors, vectors, rows,
            np.searchsorted(rows, self.rows[self.asking[places]]), np.searchsorted(rows, self.rows[self.answering[places]]),
            [self.pairs[place] for place in places.tolist()], self.forth[places], self.back[places], self.phase,
            self.lost[places], self.unproven[places], self.forth_lost[places], self.back_lost[places],
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """Payloads in bytes.

    Args:
        request: (m,) initiator to responder.
        response: (m,) and back; 0 where there was none.
    """

    request: NDArray[np.int64]
    response: NDArray[np.int64]


def in_turn(asking: NDArray[np.int64], answering: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Places of exchanges in batches that name no row twice, each after all earlier ones that share a row with it."""
    last: dict[int, int] = {}
    batch = np.empty(len(asking), np.int64)
    for place, (i, j) in enumerate(zip(asking.tolist(), answering.tolist(), strict=True)):
        batch[place] = last[i] = last[j] = max(last.get(i, -1), last.get(j, -1)) + 1
    for number in range(int(batch.max(initial=-1)) + 1):
        yield np.flatnonzero(batch == number)
