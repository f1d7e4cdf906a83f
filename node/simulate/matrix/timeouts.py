"""Adaptive deadlines of many nodes: `starling.gossip.exchange.timeouts.Deadline`, a row for each.

Shapes: N nodes, W outcomes remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from starling.gossip.exchange.timeouts import ENOUGH, SLACK, WINDOW, Deadline

Seconds = NDArray[np.float64]


@dataclass(slots=True)
class Patience:
    """N deadlines alike.

    Args:
        nodes: N.
        like: their bounds.
    """

    nodes: int
    like: Deadline
    _outcomes: Seconds = field(init=False)  # NaN: a timeout, or nothing yet
    _next: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self._outcomes = np.full((self.nodes, WINDOW), np.nan)
        self._next = np.zeros(self.nodes, np.int64)

    def observe(self, rows: NDArray[np.int64], waits_s: Seconds) -> None:
        """Each of `rows` (m,), in this order, waited so long (m,), or in vain: NaN."""
        for layer in _layers(rows):
            nodes = rows[layer]
            self._outcomes[nodes, self._next[nodes] % WINDOW] = waits_s[layer]
            self._next[nodes] += 1

    def forget(self, row: int) -> None:
        """Another node is here now."""
        self._outcomes[row] = np.nan
        self._next[row] = 0

    def wait_s(self) -> Seconds:
        """(N,) how long to wait now."""
        answers = np.isfinite(self._outcomes).sum(axis=1)
        middle = _median(self._outcomes, answers)
        spread = np.maximum(_median(np.abs(self._outcomes - middle[:, None]), answers), SLACK * middle)
        learned = np.clip(middle + self.like.k * spread, self.like.min_wait_s, self.like.max_wait_s)
        return np.where(answers < ENOUGH, self.like.max_wait_s, learned)


def _median(values: Seconds, counts: NDArray[np.int64]) -> Seconds:
    """(N,) of the `counts` numbers in each row (N, W) that are none but NaN; 0 where there is none."""
    ordered, rows = np.sort(values, axis=1), np.arange(len(values))  # NaN goes to the end
    middle = (ordered[rows, np.maximum(counts - 1, 0) // 2] + ordered[rows, counts // 2]) / 2.0
    return np.where(counts > 0, middle, 0.0)


def _layers(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Places of `rows` (h,) in batches that name no row twice: every row's first, then every row's second, and so on."""
    order = np.argsort(rows, kind="stable")
    sorted_rows = rows[order]
    begins = np.flatnonzero(np.diff(sorted_rows, prepend=-1))
    turn = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    for number in range(int(turn.max(initial=-1)) + 1):
        yield np.sort(order[turn == number])
