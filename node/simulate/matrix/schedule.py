"""Who meets whom in a round, as arrays over rows: an overlay laid over those alive.

Shapes: N rows, n of them alive, m meetings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from starling.gossip.overlay.api import Circulant, Overlay
from starling.gossip.overlay.ranks import ranked_at

_REMEMBERED = 1 << 22  # meetings, some 130 MB


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """Each pair at most once. Rows are not ranks.

    Args:
        one: (m,) int64, a row.
        other: (m,) int64, the other row.
        forth: (m,) float64, the weight that `one` gives to what it receives from `other`.
        back: (m,) float64, the weight that `other` gives to what it receives from `one`.
    """

    one: NDArray[np.int64]
    other: NDArray[np.int64]
    forth: NDArray[np.float64]
    back: NDArray[np.float64]

    def __len__(self) -> int:
        """How many meetings."""
        return len(self.one)


@dataclass(slots=True)
class Schedule:
    """An overlay's meetings, round by round; remembers those that come again.

    Args:
        overlay: which.
        peers: (N) peer id of each row.
        salt: of the ranks, as in `starling.gossip.overlay.ranks.ranked_at`.
        rerank_every: rounds of one order; 0: it never changes.
    """

    overlay: Overlay
    peers: Sequence[str]
    salt: bytes
    rerank_every: int = 0
    _order: NDArray[np.int64] = field(init=False)
    _epoch: int = field(init=False, default=-1)
    _alive: NDArray[np.bool_] = field(init=False)
    _met: dict[int, Meetings] = field(init=False, default_factory=dict)
    _kept: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._alive = np.zeros(len(self.peers), np.bool_)

    def at(self, round: int, alive: NDArray[np.bool_]) -> Meetings:
        """The meetings of a round among the rows `alive` (N,).

        Both weights of a pair are those of the overlay's matrix, 0 where a direction is missing, as
        `starling.gossip.overlay.links.links` sees them.

        Raises:
            ValueError: the overlay's kind is undefined for so many members.
        """
        epoch = round // self.rerank_every if self.rerank_every else 0
        if epoch != self._epoch:
            rows = {peer: row for row, peer in enumerate(self.peers)}
            order = ranked_at(self.peers, self.salt, round, self.rerank_every)
            self._order, self._epoch = np.array([rows[peer] for peer in order], np.int64), epoch
            self._met, self._kept = {}, 0
        if not np.array_equal(alive, self._alive):
            self._alive, self._met, self._kept = alive.copy(), {}, 0
        ranks = self._order[alive[self._order]]  # who is gone leaves the order of the others as it was
        period = self.overlay.period(len(ranks))
        turn = round if period is None else round % period
        if turn in self._met:
            return self._met[turn]
        one, other, forth, back = pairs(self.overlay, len(ranks), turn)
        met = Meetings(ranks[one], ranks[other], forth, back)
        if period is not None and self._kept + len(met) <= _REMEMBERED:
            self._met[turn] = met
            self._kept += len(met)
        return met


Pairs = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]


def pairs(overlay: Overlay, n: int, round: int) -> Pairs:
    """Ranks a and b of each pair, what a gives to what it receives from b, and what b gives to what it receives from a.

    Args:
        overlay: which.
        n: members.
        round: >= 0.

    Raises:
        ValueError: the overlay's kind is undefined for n.
    """
    if isinstance(overlay, Circulant):
        return _circulant(overlay, n, round)
    weights = {(a, b): weight for a in range(n) for b, weight in overlay.row(a, n, round).items()}
    met = sorted({(min(pair), max(pair)) for pair in weights})
    ends = np.array(met, np.int64).reshape(-1, 2)
    forth = np.array([weights.get(pair, 0.0) for pair in met])
    back = forth if overlay.symmetric else np.array([weights.get(pair[::-1], 0.0) for pair in met])
    return ends[:, 0], ends[:, 1], forth, back


def _circulant(overlay: Circulant, n: int, round: int) -> Pairs:
    """All ranks do the same, so one shift is one stretch of arrays."""
    shifts = overlay.shifts(n, round)
    ranks = np.arange(n)
    parts: list[Pairs] = []
    for shift, weight in shifts.items():
        mirrored = n - shift
        if mirrored in shifts and mirrored < shift:
            continue  # told from the other end
        a = ranks[: n // 2] if mirrored == shift else ranks
        forth = np.full(len(a), weight)
        parts.append((a, (a + shift) % n, forth, np.full(len(a), shifts.get(mirrored, 0.0))))
    if not parts:
        empty = np.zeros(0, np.int64)
        return empty, empty, np.zeros(0), np.zeros(0)
    a, b, forth, back = (np.concatenate(part) for part in zip(*parts, strict=True))
    return a, b, forth, back
