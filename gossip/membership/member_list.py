"""One node's list of the swarm's members.

Theory of operation. Each member signs a record of itself; for one peer the record with the larger (incarnation, version) wins,
so a view is a join-semilattice: the records it holds are the same in whatever order, and however often, they arrived. What a
node *believes* lies on top, tied to the exact record it is about:

    alive ──suspect──▶ suspect ──bury──▶ dead          a belief names (incarnation, version);
      ▲                  │  ▲              │           any newer record voids it
      └─ clear, newer ───┘  └── newer ─────┘
    left: the member's own last word, signed; only a newer record undoes it

Dead and left members are kept as tombstones for `tombstone_s`, so that an old record, still travelling, does not resurrect them.
A suspect counts as alive: the digest changes when a member is gone, not when somebody doubts it.

Whom the gate does not admit is not taken in, and taken out when it no longer does, without a tombstone: the gate itself keeps an old
record out. Each place, such as an address prefix, has a bounded number of seats, charged to a peer where it was when it came in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.membership.events import Changed, Died, Joined, Left, MemberEvent, Reborn, Suspected
from starling.gossip.membership.gate import Gate, OpenGate
from starling.gossip.overlay.ranks import digest
from starling.gossip.wire.schema import Record

MAX_MEMBERS = 4096
TOMBSTONE_S = 3600.0

Status = Literal["alive", "suspect", "dead", "left"]
Place = tuple[str, int]
"""Where a peer is, and how many of the members may be there."""


@dataclass(frozen=True, slots=True)
class Member:
    """The winning record of a peer and what we believe of it since when."""

    record: Record
    status: Status
    since: float

    @property
    def present(self) -> bool:
        """In the alive set."""
        return self.status in {"alive", "suspect"}


def life(record: Record) -> tuple[int, int]:
    """(incarnation, version): which statement of its peer this is."""
    return record.incarnation, record.version


def _order(record: Record) -> tuple[int, int, bool, tuple[str, ...], bytes]:
    """Total order of one peer's records. Beyond `life` it only decides between two that a liar signed for the same life."""
    return record.incarnation, record.version, record.status == "left", record.addresses, record.signature


@dataclass(slots=True)
class View:
    """The member list.

    Args:
        verify: whether a record is signed by its peer, for this swarm.
        gate: who may be a member.
        place: where a record's peer is; one place with room for all, if not given.
        max_members: peers remembered; beyond it the oldest tombstone makes room, else newcomers are not taken in.
        tombstone_s: how long dead and left members are remembered.
    """

    verify: Callable[[Record], bool]
    gate: Gate = field(default_factory=OpenGate)
    place: Callable[[Record], Place] | None = None
    max_members: int = MAX_MEMBERS
    tombstone_s: float = TOMBSTONE_S
    _members: dict[str, Member] = field(default_factory=dict)
    _cached: tuple[tuple[str, ...], bytes] | None = None
    _places: dict[str, str] = field(default_factory=dict)
    _seats: Counter[str] = field(default_factory=Counter)
    _graves: Counter[str] = field(default_factory=Counter)

    @property
    def members(self) -> Mapping[str, Member]:
        """All that is remembered, tombstones included."""
        return MappingProxyType(self._members)

    @property
    def alive(self) -> tuple[str, ...]:
        """Peers believed alive or only suspected, in order."""
        return self._listed()[0]

    @property
    def digest(self) -> bytes:
        """Digest of the alive set."""
        return self._listed()[1]

    @property
    def records(self) -> tuple[Record, ...]:
        """What is worth telling others, in order of peer: records of members present or left. The dead are a belief, not a record."""
        return tuple(member.record for _, member in sorted(self._members.items()) if member.status != "dead")

    def screen(self, records: Iterable[Record], source: str) -> None:
        """Check the signatures and credentials of those records that would change what we hold; the others cost nothing.

        Args:
            records: of any peers.
            source: who told us, to blame for a forgery.

        Raises:
            RemoteProtocolError: one is not signed by its peer for this swarm, or no honest member can have told it.
        """
        for record in records:
            known = self._members.get(record.peer)
            if known is not None and _order(record) <= _order(known.record):
                continue
            if not self.verify(record):
                raise RemoteProtocolError(source, "record_forged")
            fault = self.gate.fault(record)
            if fault:
                raise RemoteProtocolError(source, fault)

    def merge(self, record: Record, now: float) -> list[MemberEvent]:
        """Take in a record that passed `screen`, if its peer may be a member and it is newer than what we hold."""
        known = self._members.get(record.peer)
        if known is not None and _order(record) <= _order(known.record):
            return []
        if not self.gate.admits(record) or (known is None and not self._make_room(record)):
            return []
        status: Status = "left" if record.status == "left" else "alive"
        self._put(Member(record, status, now))
        return _difference(known, self._members[record.peer])

    def suspect(self, peer: str, now: float) -> list[MemberEvent]:
        """Doubt a member as it stands now; nothing if it is not alive."""
        member = self._members.get(peer)
        if member is None or member.status != "alive":
            return []
        self._put(Member(member.record, "suspect", now))
        return [Suspected(peer)]

    def clear(self, peer: str, now: float) -> list[MemberEvent]:
        """Drop our doubt: we heard the member ourselves."""
        member = self._members.get(peer)
        if member is None or member.status != "suspect":
            return []
        self._put(Member(member.record, "alive", now))
        return [Changed(peer)]

    def bury(self, peer: str, now: float) -> list[MemberEvent]:
        """Believe a suspected member dead."""
        member = self._members.get(peer)
        if member is None or member.status != "suspect":
            return []
        self._put(Member(member.record, "dead", now))
        return [Died(peer)]

    def forget(self, now: float) -> None:
        """Drop tombstones older than `tombstone_s`."""
        for peer in [p for p, m in self._members.items() if not m.present and now - m.since > self.tombstone_s]:
            self._drop(peer)

    def purge(self) -> list[MemberEvent]:
        """Take out all whom the gate no longer admits."""
        gone = [(peer, m) for peer, m in sorted(self._members.items()) if not self.gate.admits(m.record)]
        for peer, _ in gone:
            self._drop(peer)
        return [Died(peer) for peer, member in gone if member.present]

    def _drop(self, peer: str) -> None:
        member, place = self._members.pop(peer), self._places.pop(peer, "")
        self._seats[place] -= 1
        if member.present:
            self._cached = None
        else:
            self._graves[place] -= 1
        if not self._seats[place]:
            del self._seats[place], self._graves[place]

    def _put(self, member: Member) -> None:
        before = self._members.get(member.record.peer)
        self._members[member.record.peer] = member
        was_present = before is None or before.present
        self._graves[self._places.get(member.record.peer, "")] += was_present - member.present
        if before is None or before.present != member.present:
            self._cached = None

    def _listed(self) -> tuple[tuple[str, ...], bytes]:
        if self._cached is None:
            alive = tuple(sorted(peer for peer, member in self._members.items() if member.present))
            self._cached = alive, digest(alive)
        return self._cached

    def _make_room(self, record: Record) -> bool:
        """A seat for a newcomer, and in its place; the oldest tombstone there gives way."""
        place, most = self.place(record) if self.place is not None else ("", self.max_members)
        crowded = self._seats[place] >= most
        if crowded or len(self._members) >= self.max_members:
            if not (self._graves[place] if crowded else self._graves.total()):
                return False
            tombstones = [
                (member.since, peer) for peer, member in self._members.items()
                if not member.present and not (crowded and self._places.get(peer) != place)
            ]  # fmt: skip
            self._drop(min(tombstones)[1])
        self._places[record.peer] = place
        self._seats[place] += 1
        return True


def _difference(known: Member | None, member: Member) -> list[MemberEvent]:
    """What an accepted record changed."""
    peer = member.record.peer
    was_present = known is not None and known.present
    events: list[MemberEvent] = []
    if known is not None and member.record.incarnation > known.record.incarnation:
        events.append(Reborn(peer))
    if member.present and not was_present:
        events.append(Joined(peer))
    elif was_present and not member.present:
        events.append(Left(peer))
    elif (
        known is not None
        and member.present
        and not events
        and (known.status == "suspect" or known.record.addresses != member.record.addresses)
    ):
        events.append(Changed(peer))
    return events
