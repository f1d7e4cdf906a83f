"""What a member says of itself: its signed record, and what outranks any other word about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from starling.gossip.membership.member_list import life
from starling.gossip.wire.schema import Record

MAX_ACCUSERS = 64


@dataclass(slots=True)
class Ourselves:
    """The only speaker for one member.

    Args:
        own: its signed record, status "alive".
        sign: fills in the signature of a record of its.
    """

    own: Record
    sign: Callable[[Record], Record]
    refute_at: float = math.inf
    """When there is something to contradict."""
    _refuted_at: float = -math.inf
    _accusers: set[str] = field(default_factory=set)

    def restate(self, **changes: object) -> Record:
        """A newer record, with these fields changed."""
        version = {"version": self.own.version + 1, **changes}
        self.own = self.sign(msgspec.structs.replace(self.own, **version))
        return self.own

    def reclaim(self, record: Record) -> Record | None:
        """Outrank a record of ours newer than the one we know, from an earlier life when our clock ran ahead; None: it is none."""
        if life(record) <= life(self.own):
            return None
        if record.incarnation > self.own.incarnation:
            return self.restate(incarnation=record.incarnation + 1, version=0)
        return self.restate(version=record.version + 1)

    def accused(self, source: str, now: float, pause_s: float) -> None:
        """`source` doubts us: contradict soon, `pause_s` after the last time at the earliest, so that one liar makes no flood."""
        self.refute_at = min(self.refute_at, max(now, self._refuted_at + pause_s))
        if len(self._accusers) < MAX_ACCUSERS:
            self._accusers.add(source)

    def refute(self, now: float) -> list[str]:
        """Restate our record -> accusers, who get it in person: they may stand outside our list, or miss the wave."""
        self.refute_at, self._refuted_at = math.inf, now
        self.restate()
        accusers, self._accusers = sorted(self._accusers), set()
        return accusers
