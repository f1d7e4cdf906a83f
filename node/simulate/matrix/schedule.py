"""Schedule of exchanges as arrays over rows: by the overlay of the living in a round of steps pace, by visits in a slot of clock pace.

Shapes: N rows, n of them alive, m exchanges.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from starling.gossip.exchange.commands import MAX_SERVED
from starling.gossip.overlay.api import Circulant, Overlay
from starling.gossip.overlay.ranks import epoch_of, ranked_at
from starling.gossip.rng import generator
from starling.node.simulate.matrix.rings import Moved, Rings

_REMEMBERED = 1 << 22  # number of stored exchanges, some 130 MB


@dataclass(frozen=True, slots=True, eq=False)
class Exchanges:
    """Pairs of a round, each at most once; in a slot, visits in their order."""

    ends: NDArray[np.int64]  # (2, m) rows or ranks of one end and of the other
    weights: NDArray[np.float64]  # (2, m) weight that each of them gives to received vectors

    def __len__(self) -> int:
        return len(self.ends[0])

    def of(self, which: NDArray[np.bool_]) -> "Exchanges":
        """Return the exchanges that `which` (m,) selects."""
        return Exchanges(self.ends[:, which], self.weights[:, which])


@dataclass(slots=True)
class Schedule:
    """An overlay's exchanges, round by round; remembers those that recur."""

    overlay: Overlay
    peers: Sequence[str]  # (N) peer id of each row
    salt: bytes  # salt of the ranks, as in `starling.gossip.overlay.ranks.ranked_at`
    rerank_every: int = 0  # rounds of one order; 0: it never changes
    _order: NDArray[np.int64] = field(init=False)
    _epoch: int = field(init=False, default=-1)
    _alive: NDArray[np.bool_] = field(init=False)
    _known: dict[int, Exchanges] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._alive = np.zeros(len(self.peers), np.bool_)

    def at(self, round: int, alive: NDArray[np.bool_]) -> Exchanges:
        """Return the exchanges of a round among the rows `alive` (N,).

        Both weights of a pair are those of the overlay's matrix, 0 where a direction is missing, as
        `starling.gossip.overlay.links.links` sees them.

        Raises ValueError: the overlay's kind is undefined for so many members.
        """
        epoch = epoch_of(round, self.rerank_every)
        if epoch != self._epoch or not np.array_equal(alive, self._alive):
            self._known = {}
        if epoch != self._epoch:
            rows = {peer: row for row, peer in enumerate(self.peers)}
            order = ranked_at(self.peers, self.salt, round, self.rerank_every)
            self._order, self._epoch = np.array([rows[peer] for peer in order], np.int64), epoch
        self._alive = alive.copy()
        ranks = self._order[alive[self._order]]  # a departure leaves the order of the others unchanged
        period = self.overlay.period(len(ranks))
        phase = round if period is None else round % period
        if phase in self._known:
            return self._known[phase]
        ranked = by_rank(self.overlay, len(ranks), phase)
        exchanges = Exchanges(ranks[ranked.ends], ranked.weights)
        if period is not None and sum(map(len, self._known.values())) + len(exchanges) <= _REMEMBERED:
            self._known[phase] = exchanges
        return exchanges


def by_rank(overlay: Overlay, n: int, round: int) -> Exchanges:
    """Return the exchanges of a round among n members, whose ends are ranks. Raises ValueError: the overlay's kind is undefined for n."""
    if isinstance(overlay, Circulant):
        return _circulant(overlay, n, round)
    weights = {(a, b): weight for a in range(n) for b, weight in overlay.row(a, n, round).items()}
    pairs = sorted({(min(pair), max(pair)) for pair in weights})
    both = [(weights.get(pair, 0.0), weights.get(pair[::-1], 0.0)) for pair in pairs]
    return Exchanges(np.array(pairs, np.int64).reshape(-1, 2).T, np.array(both).reshape(-1, 2).T)


def _circulant(overlay: Circulant, n: int, round: int) -> Exchanges:
    """Return the exchanges of a circulant overlay: all ranks have the same shifts, so one shift is one block of arrays."""
    shifts, ranks = overlay.shifts(n, round), np.arange(n)
    parts = [Exchanges(np.zeros((2, 0), np.int64), np.zeros((2, 0)))]
    for shift, weight in shifts.items():
        mirrored = n - shift
        if mirrored in shifts and mirrored < shift:
            continue  # the other end's shift
        a = ranks[: n // 2] if mirrored == shift else ranks
        weights = np.repeat([[weight], [shifts.get(mirrored, 0.0)]], len(a), axis=1)
        parts.append(Exchanges(np.stack((a, (a + shift) % n)), weights))
    return Exchanges(*(np.concatenate([getattr(part, name) for part in parts], axis=1) for name in ("ends", "weights")))


@dataclass(slots=True)
class SlotSchedule:
    """Clock pace: each node visits the lasting edge that it has not visited for longest, by the rule of `gossip.exchange.slots`."""

    peers: Sequence[str]  # (N) peer id of each row
    degree: int
    salt: bytes
    theta: float  # mixing weight of every exchange
    seed: int  # decides the order within a slot
    rings: Rings = field(init=False)
    _members: NDArray[np.bool_] = field(init=False)
    visited: dict[tuple[int, int], int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.rings = Rings(self.peers, self.degree, self.salt)
        self._members = np.zeros(len(self.peers), dtype=bool)

    def update(self, members: NDArray[np.bool_]) -> Moved:
        """Members (N,) came or went -> what became of edges."""
        before, self._members = self._members, members.copy()
        self.visited = {pair: slot for pair, slot in self.visited.items() if members[pair[0]] and members[pair[1]]}
        return self.rings.change(np.flatnonzero(before & ~members).tolist(), np.flatnonzero(members & ~before).tolist())

    def at(self, slot: int) -> Exchanges:
        """Return the visits of a slot, in the order in which they happen: at most one that a node makes, few that it answers."""
        rows = np.flatnonzero(self._members)
        order = torch.randperm(len(rows), generator=generator(self.seed, "visits", slot)).numpy()
        served, visiting, pairs = dict.fromkeys(rows.tolist(), 0), dict[int, int](), list[tuple[int, int]]()
        for row in rows[order].tolist():
            longest_ago = min(
                self.rings.edges[row], default=None, key=lambda other: (self.visited.get((row, other), -1), self.peers[other])
            )
            if longest_ago is None:
                continue
            self.visited[row, longest_ago] = slot
            # where the peer is visiting this row already, one exchange serves both
            if visiting.get(longest_ago) != row and served[longest_ago] < MAX_SERVED:
                served[longest_ago] += 1
                visiting[row] = longest_ago
                pairs.append((row, longest_ago))
        return Exchanges(np.array(pairs, np.int64).reshape(-1, 2).T, np.full((2, len(pairs)), self.theta))
