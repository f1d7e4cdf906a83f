"""Rate limit of a member's record changes: of the records beyond it the newest waits, the others are dropped.

Each accepted record is stored, told to the overlay and spread to others, so a peer that signs new ones all the time would have all members
do so. An honest one signs a few in a life, and one in `Timing.timeout_s` while it is accused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from starling.gossip.membership.member_list import order_of
from starling.gossip.wire.schema import Record

AT_ONCE = 8  # records of one peer


@dataclass(slots=True)
class Pacing:
    """Records of all peers; `now` is local time in seconds."""

    every_s: float  # average seconds between two records of one peer
    _paid: dict[str, float] = field(default_factory=dict)  # time until which a peer has used up its turns, by one turn at a time
    _waiting: dict[str, Record] = field(default_factory=dict)  # the newest of each peer

    @property
    def deadline(self) -> float:
        """Return the time of the next waiting record; infinite if there is none."""
        return min(map(self._turn, self._waiting), default=inf)

    def accepts(self, record: Record, now: float) -> bool:
        """Tell if a new record may be merged now, which counts as done; else it waits, if it is the newest."""
        peer = record.peer
        if now >= self._turn(peer):
            self._paid[peer] = max(now, self._paid.get(peer, now)) + self.every_s
            return True
        if peer not in self._waiting or order_of(record) > order_of(self._waiting[peer]):
            self._waiting[peer] = record
        return False

    def due(self, now: float) -> list[Record]:
        """Records whose turn has come, to be merged now."""
        return [self._waiting.pop(peer) for peer in sorted(self._waiting) if now >= self._turn(peer)]

    def forget(self, now: float) -> None:
        """Drop entries that no longer matter."""
        self._paid = {peer: until for peer, until in self._paid.items() if until > now}

    def _turn(self, peer: str) -> float:
        return self._paid.get(peer, -inf) - (AT_ONCE - 1) * self.every_s
