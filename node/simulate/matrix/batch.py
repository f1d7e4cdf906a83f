"""Exchanges that are computed together, and what they resulted in.

Shapes: N rows of a swarm, r rows of the vectors at hand, D numbers of the shared vector, m exchanges.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.api import Phase
from starling.node.simulate.matrix.edges import Pair

Sizes = NDArray[np.int64]  # (2, m) bytes of the payloads: initiator to responder, and back, 0 where there was none


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Exchanges among rows of a swarm, or among some of these rows alone."""

    vectors: Tensor  # (r, D) the shared vectors, updated in place
    # (r, D) twice: vectors that initiators and responders read as their own; equal to `vectors`, except for attackers and pending answers
    read: tuple[Tensor, Tensor]
    rows: NDArray[np.int64]  # (r,) the swarm's row of each row of `vectors`, ascending
    ends: NDArray[np.int64]  # (2, m) rows of `vectors`: initiators and responders
    pairs: Sequence[Pair]  # (m) the same as rows of the swarm
    weights: NDArray[np.float64]  # (2, m) weights that initiators and responders give to received vectors
    phase: Phase
    lost: NDArray[np.bool_]  # (m,) nothing happens
    unproven: NDArray[np.bool_]  # (m,) only the initiator commits for now
    borne: NDArray[np.float64] | None = None  # (r,) share in [0, 1] of its correction that each sends; None: nothing

    def of(self, places: NDArray[np.int64], vectors: Tensor, rows: NDArray[np.int64]) -> "Batch":
        """Return some of the exchanges, with the vectors of these rows (ascending) only."""
        return Batch(
            vectors,
            (vectors, vectors),
            rows,
            np.searchsorted(rows, self.rows[self.ends[:, places]]),
            [self.pairs[place] for place in places],
            self.weights[:, places],
            self.phase,
            self.lost[places],
            self.unproven[places],
        )


@dataclass(frozen=True, slots=True, eq=False)
class RoundStats:
    """Results of a round's exchanges, in their order."""

    committed: NDArray[np.bool_]  # (m,) whether the initiator commits, and the responder unless `unproven`
    unproven: NDArray[np.bool_]  # (m,) whether the responder does not know yet
    ends: NDArray[np.int64]  # (2, m) rows of the initiators and responders
    sizes: Sizes  # payload bytes; requests count where lost as well


U = TypeVar("U")


class Pending(dict[Pair, U]):
    """Updates that responders have answered but not committed: they do not know yet whether their initiators have."""

    def resolve(self, batch: Batch) -> Iterator[tuple[NDArray[np.int64], U]]:
        """Remove and yield pending updates whose responders learn of the commit by the next exchange: (responder's row (1,), update)."""
        for place, pair in enumerate(batch.pairs):
            if not batch.lost[place] and pair in self:
                yield batch.ends[1, place : place + 1], self.pop(pair)

    def elsewhere(self, batch: Batch, *ends: int) -> list[tuple[NDArray[np.int64], U]]:
        """Return the pending updates of rows that are in the batch as one of `ends` (0 initiator, 1 responder), but on another edge."""
        at = {pair[end]: (batch.ends[end, k : k + 1], pair) for end in ends for k, pair in enumerate(batch.pairs)}
        return [(at[pair[1]][0], update) for pair, update in self.items() if pair[1] in at and at[pair[1]][1] != pair]


def disjoint(ends: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Places of exchanges (2, m) in batches that name no row twice, each after all earlier ones that share a row with it."""
    last: dict[int, int] = {}
    batch = np.empty(ends.shape[1], np.int64)
    for place, (i, j) in enumerate(ends.T.tolist()):
        batch[place] = last[i] = last[j] = max(last.get(i, -1), last.get(j, -1)) + 1
    for number in range(int(batch.max(initial=-1)) + 1):
        yield np.flatnonzero(batch == number)
