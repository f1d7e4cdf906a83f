"""Epidemic dissemination: each new record or rumor is sent to a few members, who do the same, then dropped from the queue.

With MOST_COPIES each, all but one in a hundred have it within some frames' time; the others learn it from a comparison, which the next
probe with another digest calls for. So what a change costs a node does not grow with the swarm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from starling.gossip.membership.member_list import Member, MemberList
from starling.gossip.wire.schema import MAX_RECORDS, MAX_RUMORS, Record, Rumor

SMALL_SWARM = 16  # up to this many members, every update is sent to all of them at once
MAX_PIGGYBACK = 16
MOST_COPIES = 5  # copies in a large swarm: one member in e**5 gets none


def fan_out(n: int) -> int:
    """Members sent one update that no comparison repairs, of n alive ones including this node."""
    return n - 1 if n <= SMALL_SWARM else math.ceil(math.log2(n))


def record_fan_out(n: int) -> int:
    """Return the number of members to which one record or rumor is sent."""
    return n - 1 if n <= SMALL_SWARM else MOST_COPIES


@dataclass(slots=True)
class Dissemination:
    """Queues of peers whose record or suspicion is new, with the sends left; the content is read from the member list on sending."""

    member_list: MemberList
    own: str
    due_at: float = math.inf
    """Local time of the next frame of them; infinite if nothing is queued."""
    _records: dict[str, int] = field(default_factory=dict)
    _rumors: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._records or self._rumors)

    def add_record(self, peer: str, now: float) -> None:
        """Queue the new record of `peer`, to be sent now; queued rumors about an older one are dropped."""
        self.due_at = now
        self._records[peer] = record_fan_out(self.member_list.size)
        self._rumors.pop(peer, None)

    def add_rumor(self, peer: str, now: float) -> None:
        """Queue the suspicion, or belief of death, of `peer`, to be sent now."""
        self.due_at = now
        self._rumors[peer] = record_fan_out(self.member_list.size)

    def take(self, copies: int) -> tuple[tuple[Record, ...], tuple[Rumor, ...]]:
        """Records and rumors for one frame that is sent to `copies` members."""
        records = []
        for peer in list(self._records)[:MAX_RECORDS]:
            member = self.member_list.members.get(peer)
            if member is not None and member.status != "dead":
                records.append(member.record)
            _spend(self._records, peer, copies)
        return tuple(records), self.take_rumors(copies, MAX_RUMORS)

    def take_rumors(self, copies: int, most: int = MAX_PIGGYBACK) -> tuple[Rumor, ...]:
        """Return at most `most` rumors to piggyback on a frame that is sent to `copies` members."""
        rumors = []
        for peer in list(self._rumors)[:most]:
            rumor = self.rumor(peer)
            if rumor is not None:
                rumors.append(rumor)
            _spend(self._rumors, peer, copies)
        return tuple(rumors)

    def rumor(self, peer: str) -> Rumor | None:
        """This node's own accusation of `peer`, or None if it holds it alive or does not know it."""
        member = self.member_list.members.get(peer)
        match member:
            case Member(record=record, status=("suspect" | "dead") as state):
                return Rumor(peer, record.incarnation, record.version, state, self.own)
            case _:
                return None


def _spend(left: dict[str, int], peer: str, copies: int) -> None:
    left[peer] -= copies
    if left[peer] <= 0:
        del left[peer]
