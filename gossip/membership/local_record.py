"""This node's own signed record, and the versions of it that refute accusations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from starling.gossip.membership.member_list import version_of
from starling.gossip.wire.schema import Record

MAX_ACCUSERS = 64


@dataclass(slots=True)
class LocalRecord:
    """The record of one member, as that member maintains it; `sign` returns a record with its signature filled in."""

    record: Record
    sign: Callable[[Record], Record]
    outranked: int = -1  # incarnation of the last record of ours that was newer than ours and was superseded
    refute_at: float = math.inf  # local time at which to refute an accusation; infinite without one
    _refuted_at: float = -math.inf
    _accusers: set[str] = field(default_factory=set)

    def update(self, **changes: object) -> Record:
        """Sign and store a newer version with these fields changed -> the record."""
        version = {"version": self.record.version + 1, **changes}
        self.record = self.sign(msgspec.structs.replace(self.record, **version))
        return self.record

    def outrank(self, other: Record) -> Record | None:
        """Supersede a newer record of ours, as after a restart with a clock set back; None if it is not newer."""
        left = other.incarnation == self.record.incarnation and other.status == "left"
        if version_of(other) <= version_of(self.record) and not left:
            return None
        self.outranked = other.incarnation
        if other.incarnation > self.record.incarnation or left:
            return self.update(incarnation=other.incarnation + 1, version=0)
        return self.update(version=other.version + 1)

    def note_accusation(self, source: str, now: float, pause_s: float) -> None:
        """Schedule a refutation of `source`, at least `pause_s` after the previous one, which bounds the traffic it can cause."""
        self.refute_at = min(self.refute_at, max(now, self._refuted_at + pause_s))
        if len(self._accusers) < MAX_ACCUSERS:
            self._accusers.add(source)

    def refute(self, now: float) -> list[str]:
        """Raise our record's version -> the accusers, to be sent it directly: they may be unknown to us, or miss the dissemination."""
        self.refute_at, self._refuted_at = math.inf, now
        self.update()
        accusers, self._accusers = sorted(self._accusers), set()
        return accusers
