"""Changes of many rows, each row's in order of peer id: what a loop over nodes and their sorted effects does, many nodes at a time.

Shapes: r rows of a table, h changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from starling.node.simulate.matrix.sampler import indices
from starling.node.simulate.matrix.table import Picks, Table


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What some exchanges do to one end each.

    Args:
        rows: (h,) of the table.
        peers: (h,) place of the other end in the order of peer ids.
        picks: (h, …) coordinates.
        values: (h, …) as wide as `picks`.
        sign: of them.
        late: of an earlier round: before whatever else is about the same peer.
    """

    rows: NDArray[np.int64]
    peers: NDArray[np.int64]
    picks: Picks
    values: Tensor
    sign: int
    late: bool = False

    def of(self, places: NDArray[np.int64]) -> Change:
        """Some of them."""
        if len(places) == len(self.rows):
            return self
        at = indices(places, self.values)
        return Change(
            self.rows[places], self.peers[places], self.picks.of(at), self.values[at], self.sign, self.late
        )  # fmt: skip


def apply(changes: Sequence[Change], vectors: Table) -> None:
    """vectors[rows, picks] += sign·values, one rounding each, in every row in order of peer."""
    if not changes:
        return
    rows, peers = np.concatenate([c.rows for c in changes]), np.concatenate([c.peers for c in changes])
    late = np.concatenate([np.full(len(c.rows), c.late) for c in changes])
    ends = np.cumsum([len(c.rows) for c in changes])
    for layer in layers(rows, peers, ~late):
        places = np.searchsorted(ends, layer, side="right")
        for place in np.unique(places):
            change = changes[place]
            change = change.of(layer[places == place] - (ends[place] - len(change.rows)))
            vectors.add(indices(change.rows, vectors.wide), change.picks, change.values, change.sign)


def layers(rows: NDArray[np.int64], *keys: NDArray[np.generic]) -> Iterator[NDArray[np.int64]]:
    """Places of `rows` in batches that name no row twice: first every row's first by `keys`, then every row's second, and so on.

    Args:
        rows: (h,).
        keys: (h,) each, the most important first.
    """
    order = np.lexsort((*keys[::-1], rows))
    sorted_rows = rows[order]
    begins = np.flatnonzero(np.diff(sorted_rows, prepend=-1))
    turn = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    for number in range(int(turn.max(initial=-1)) + 1):
        yield np.sort(order[turn == number])
