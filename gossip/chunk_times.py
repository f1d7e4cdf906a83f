"""Arrival times of chunks from the peers of a fetch, of one model or of several: which peers are silent or unreliable.

A peer is *silent* while it owes a chunk and has sent none for longer than chunks usually take from the others of the same fetch. So on a
slow line, or among engines in the middle of long steps, a peer has as much time as these need, and where others deliver at once a few
seconds. What their offers took counts as well: an engine answers both between two steps. As long as no other peer has sent a chunk, there
is nothing to compare with and nobody is silent before `unknown_s`.

The times are the joiner's own, by a median over peers: one peer, however it times what it sends, changes nobody's bound by more than the
others span, and never its own.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from statistics import median

from starling.gossip.robust_deadline import late_after

SPREADS, SLACK = 4.0, 0.5  # spreads and factor of chunk times beyond which a chunk is late
WINDOW = 16  # number of last chunk times used
UNKNOWN_S = 16.0  # seconds before a peer counts as silent without others to compare: a chunk of 1 MiB at 64 KiB/s
LEAST_S = 2.0  # seconds before any peer counts as silent: chunks of a peer with several in flight may be this far apart


@dataclass(slots=True)
class ChunkTimes:
    """Records requests and arrivals of chunks. `now` is local time, all times are seconds.

    Args:
        least_s: time in which nobody is silent, >= 0.
        unknown_s: the same as long as no other peer has sent anything.
    """

    least_s: float = LEAST_S
    unknown_s: float = UNKNOWN_S
    let_down: set[str] = field(default_factory=set)
    """Peers that were silent when the fetch stopped waiting for them."""
    delivered: set[str] = field(default_factory=set)
    """Peers whose last chunk that was asked for came."""
    _took: dict[str, deque[float]] = field(default_factory=dict)  # seconds of the last chunks of each peer
    _offers: dict[str, float] = field(default_factory=dict)  # seconds of each peer's offer
    _owed: Counter[str] = field(default_factory=Counter)
    _since: dict[str, float] = field(default_factory=dict)  # peer -> time since which it has sent no requested chunk

    def offered(self, peer: str, took_s: float) -> None:
        """Record that a peer's offer came `took_s` after it had been asked for."""
        self._offers[peer] = took_s

    def asked(self, peer: str, now: float) -> None:
        """Record a request to a peer."""
        if not self._owed[peer]:
            self._since[peer] = now
        self._owed[peer] += 1

    def arrived(self, peer: str, took_s: float, now: float) -> None:
        """Record that a chunk came `took_s` after it had been asked for."""
        self._owed[peer] -= 1
        self._since[peer] = now
        self.let_down.discard(peer)
        self.delivered.add(peer)
        self._took.setdefault(peer, deque(maxlen=WINDOW)).append(took_s)

    def given_up(self, peer: str, now: float) -> None:
        """Record that a chunk is no longer waited for: it did not come in time, was wrong, or came from another peer."""
        if self.is_silent(peer, now):
            self._let_down(peer)
        self._owed[peer] -= 1

    def end(self, now: float) -> None:
        """Stop waiting for outstanding chunks."""
        for peer in self._since:
            if self.is_silent(peer, now):
                self._let_down(peer)
        self._owed.clear()

    def _let_down(self, peer: str) -> None:
        self.let_down.add(peer)
        self.delivered.discard(peer)

    def of(self, peer: str) -> deque[float]:
        """Return the times of the last chunks of a peer, empty before the first."""
        return self._took.get(peer, deque())

    def usual_s(self, but: str = "") -> float | None:
        """Return when a chunk is late, by how long they take from most peers other than `but`; None: none of these has sent one."""
        took = [median(times) for peer, times in self._took.items() if peer != but]
        offers = [took_s for peer, took_s in self._offers.items() if peer != but]
        if not took:
            return None
        return max(self.least_s, *(late_after(each, SPREADS, SLACK) for each in (took, offers) if each))

    def is_silent(self, peer: str, now: float) -> bool:
        """Return whether the peer has sent no requested chunk for longer than others usually take."""
        if self._owed[peer] <= 0:
            return False
        usual_s = self.usual_s(peer)
        return now - self._since[peer] > (max(self.unknown_s, self.least_s) if usual_s is None else usual_s)
