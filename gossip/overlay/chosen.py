"""Edges for volunteers with different connections: some random, the others to peers with which exchanges are fast.

Shapes: n members.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from starling.gossip.limits import keep
from starling.gossip.overlay.ranks import ranked
from starling.gossip.overlay.sticky import LEAST_CHOOSING, StickyEdges

EVERY = 30
HYSTERESIS = 1.5  # least ratio of the speed of a new edge to that of the slowest one, which it replaces
TRIED_A_DEGREE = 4  # members that are tried for each edge, so that trying ends in a large swarm
SMOOTHING = 0.3
MOST_RATES = 256


@dataclass(slots=True)
class ChosenEdges:
    """A node's lasting edges: ⌈degree/3⌉ of `StickyEdges`, drawn by salted rings, and the fastest that it found. No clock, no messages.

    Theory of operation. The drawn edges keep the graph connected and let models of every corner meet: the fastest alone make cliques. The
    others begin with members in an order of this node's own; every `every` updates one of them may change: the slowest makes room for a
    member that was not tried yet, as long as fewer than TRIED_A_DEGREE · degree were, and later for one that was HYSTERESIS times as fast
    when it was last met. Nothing changes before all of them were measured, so every one has its chance; one change at a time, as each
    settles or resets a flow. Rates are this node's own measurements of whole exchanges, so nobody's word counts; a member that is fast and
    refuses is not asked again until as many choices are over as members are tried.

    An edge needs both ends. Those that others opened are guests: this node answers them and does not visit them, as it would spend its
    turns on whoever is slow. Whom it visits are the drawn ones in every third turn, the fast ones in the others. There is room for as many
    guests as the degree; who is fast for many refuses the rest.

    Source: the choice of a part by speed and a part by chance, as peers of BitTorrent unchoke (Cohen 2003, "Incentives Build Robustness in
    BitTorrent"); own measurements in docs/decisions/0091.
    """

    degree: int  # edges to aim for, >= LEAST_CHOOSING
    salt: bytes  # as of StickyEdges
    every: int = EVERY  # updates between two changes, >= 1
    _drawn: StickyEdges = field(init=False)
    _fast: set[str] = field(default_factory=set)
    _guests: set[str] = field(default_factory=set)
    rates: dict[str, float] = field(default_factory=dict)  # smoothed bytes a second of exchanges, by peer
    refused: dict[str, int] = field(default_factory=dict)  # peer -> number of the choice in which it refused
    _tried: set[str] = field(default_factory=set)
    _updates: int = 0
    _alive: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.degree < LEAST_CHOOSING:
            raise ValueError(f"degree must be >= {LEAST_CHOOSING}, got {self.degree}: one edge must remain random")
        if self.every < 1:
            raise ValueError(f"every must be >= 1, got {self.every}")
        self._drawn = StickyEdges(math.ceil(self.degree / 3), self.salt)

    @property
    def peers(self) -> tuple[str, ...]:
        """Return peers with an edge, sorted."""
        return tuple(sorted({*self._drawn.peers, *self._fast, *self._guests}))

    def visits(self, turn: int) -> tuple[str, ...]:
        """Return the peers of which one is visited in a turn; all, if there are none of that kind."""
        sort = self._drawn.peers if turn % 3 == 0 else self.fast
        return sort or self.peers

    @property
    def fast(self) -> tuple[str, ...]:
        """Return the peers of non-random edges, the fastest first; not yet measured ones last."""
        return tuple(sorted(self._fast, key=lambda peer: (-self.rates.get(peer, 0.0), peer)))

    def measured(self, peer: str, bytes_per_s: float) -> None:
        """Record the rate of an exchange with a peer, >= 0; 0: it failed."""
        known = self.rates.get(peer)
        rate = bytes_per_s if known is None else (1.0 - SMOOTHING) * known + SMOOTHING * bytes_per_s
        keep(self.rates, peer, rate, MOST_RATES)

    def update(self, me: str, alive: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Do the same as `StickyEdges.update`; each call opens at most one non-random edge, and closes one more."""
        opened, closed = self._drawn.update(me, alive)
        self._alive = frozenset(alive) - {me}
        self._fast = (self._fast & self._alive) - {*self._drawn.peers}
        self._guests = (self._guests & self._alive) - {*self._drawn.peers} - self._fast
        self._tried &= self._alive
        due = self._updates % self.every == 0
        self._updates += 1
        away = list[str]()
        room = len(self._fast) < self.degree - math.ceil(self.degree / 3)
        if (room or due) and (more := self._candidate(me, room=room)) is not None:
            if not room:
                away.append(self._slowest())
                self._fast.difference_update(away)
            self._fast.add(more)
            self._tried.add(more)
            opened = opened if more in self._guests else (*opened, more)
            self._guests.discard(more)
        return opened, (*closed, *away)

    def accept(self, peer: str) -> bool:
        """Return whether an edge opened by a live peer is kept."""
        if peer in self.peers:
            return True
        if peer in self._drawn.targets:
            return self._drawn.accept(peer)
        if len(self._guests) < self.degree:
            self._guests.add(peer)
            return True
        return False

    def drop(self, peer: str) -> None:
        """The other end refused or closed the edge."""
        if peer in self._fast:
            keep(self.refused, peer, self._choice, MOST_RATES)
        self._fast.discard(peer)
        self._guests.discard(peer)
        self._drawn.drop(peer)

    @property
    def _choice(self) -> int:
        return self._updates // self.every

    def _slowest(self) -> str:
        return min(self._fast, key=lambda peer: (self.rates.get(peer, math.inf), peer))

    def _candidate(self, me: str, *, room: bool) -> str | None:
        """Return the next peer to open an edge to; without `room` it replaces the slowest edge. None: keep the edges."""
        most = TRIED_A_DEGREE * self.degree
        others = self._alive.difference(self._fast, self._drawn.peers)
        others = frozenset(peer for peer in others if self.refused.get(peer, -most) + most <= self._choice)
        new = [peer for peer in ranked(others, self.salt + me.encode()) if peer not in self._tried]
        if room:
            known = max(others, key=lambda peer: (self.rates.get(peer, -1.0), peer), default=None)
            return new[0] if new and len(self._tried) < most else known
        if not self._fast.issubset(self.rates.keys()) or not self._fast:
            return None
        if new and len(self._tried) < most:
            return new[0]
        best = max(others & self.rates.keys(), key=lambda peer: (self.rates[peer], peer), default=None)
        if best is None or self.rates[best] <= HYSTERESIS * self.rates[self._slowest()]:
            return None
        return best
