"""Which records and rumors are still fresh: each is passed on a bounded number of times, about log n, then forgotten."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from starling.gossip.membership.member_list import Member, View
from starling.gossip.wire.schema import Record, Rumor

SMALL_SWARM = 16
"""Up to this many members news goes to all of them at once."""
MAX_FRAME_RECORDS = 56
"""Records in one frame: the largest record is under 4.6 KB, so the frame stays below the control lane's 256 KiB."""
MAX_FRAME_RUMORS = 64
MAX_PIGGYBACK = 16
_RETELLING = 3  # times log2 n: all but about n**-3 of the members hear of it even if a few frames are lost


def fan_out(n: int) -> int:
    """Members told in one wave, of n alive ones including us."""
    return n - 1 if n <= SMALL_SWARM else math.ceil(math.log2(n))


@dataclass(slots=True)
class News:
    """Peers whose record or doubt is fresh, with the sendings left. What is sent is read from the view at that moment."""

    view: View
    own: str
    _records: dict[str, int] = field(default_factory=dict)
    _rumors: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._records or self._rumors)

    def add_record(self, peer: str) -> None:
        """The record of `peer` is new to us; older doubts of it are void."""
        self._records[peer] = self._budget()
        self._rumors.pop(peer, None)

    def add_rumor(self, peer: str) -> None:
        """We doubt `peer`, or believe it dead, since now."""
        self._rumors[peer] = self._budget()

    def take(self, copies: int) -> tuple[tuple[Record, ...], tuple[Rumor, ...]]:
        """News for one frame that goes to `copies` members."""
        records = []
        for peer in list(self._records)[:MAX_FRAME_RECORDS]:
            member = self.view.members.get(peer)
            if member is not None and member.status != "dead":
                records.append(member.record)
            _spend(self._records, peer, copies)
        return tuple(records), self.take_rumors(copies, MAX_FRAME_RUMORS)

    def take_rumors(self, copies: int, most: int = MAX_PIGGYBACK) -> tuple[Rumor, ...]:
        """Rumors to piggyback on a frame that goes to `copies` members."""
        rumors = []
        for peer in list(self._rumors)[:most]:
            rumor = self.rumor(peer)
            if rumor is not None:
                rumors.append(rumor)
            _spend(self._rumors, peer, copies)
        return tuple(rumors)

    def rumor(self, peer: str) -> Rumor | None:
        """What we ourselves hold against `peer`, or None."""
        member = self.view.members.get(peer)
        match member:
            case Member(record=record, status=("suspect" | "dead") as state):
                return Rumor(peer, record.incarnation, record.version, state, self.own)
            case _:
                return None

    def _budget(self) -> int:
        n = len(self.view.alive)
        return max(1, fan_out(n) if n <= SMALL_SWARM else _RETELLING * fan_out(n))


def _spend(left: dict[str, int], peer: str, copies: int) -> None:
    left[peer] -= copies
    if left[peer] <= 0:
        del left[peer]
