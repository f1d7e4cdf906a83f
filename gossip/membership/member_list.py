"""The member list of one node.

Theory of operation. Each member signs a record of itself; of one peer's records the one with the larger (incarnation, left, version) wins,
so the records form a join-semilattice: the result does not depend on the order or number of their arrivals. In addition a node has a belief
about each member, tied to the exact record it refers to:

    alive ──suspect──▶ suspect ──mark_dead──▶ dead     a belief names (incarnation, version);
      ▲                  │  ▲                   │      any newer record voids it
      └─ clear, newer ───┘  └────── newer ──────┘
    left: the member's own signed Farewell; only a newer incarnation undoes it

Dead and left members are kept as tombstones for `tombstone_s`, so that an old record still in transit does not resurrect them.
A suspect counts as alive: the digest changes when a member is gone, not when it is suspected.

A peer that the gate rejects is not added, and is removed when the gate no longer admits it, without a tombstone: the gate itself rejects
its old records. Each address group, such as a prefix, has a bounded capacity; a peer is counted in the group of its first accepted record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.membership.events import Changed, Died, Joined, Left, MemberEvent, Reborn, Suspected
from starling.gossip.membership.gate import Gate
from starling.gossip.membership.table import Table, entry_of
from starling.gossip.overlay.ranks import digest
from starling.gossip.wire.schema import Record

MAX_MEMBERS = 16_384
TOMBSTONE_S = 3600.0

Status = Literal["alive", "suspect", "dead", "left"]
AddressQuota = tuple[str, int]  # the group that a peer's addresses belong to, and the largest number of members in it


@dataclass(frozen=True, slots=True)
class Member:
    """The newest record of a peer, the local belief about it, and the local time of its last change."""

    record: Record
    status: Status
    since: float

    @property
    def present(self) -> bool:
        """Return whether it is in the live set."""
        return self.status in {"alive", "suspect"}


def version_of(record: Record) -> tuple[int, int]:
    """Return (incarnation, version) of a record, which orders the records of one peer."""
    return record.incarnation, record.version


def order_of(record: Record) -> tuple[int, bool, int, tuple[str, ...], bytes]:
    """Total order of one peer's records, the newest last; beyond the version it decides between two that an equivocating peer signed.

    A peer leaves for good: back it comes in a new incarnation, or its comings and goings could be told to some nodes and not to others.
    """
    return record.incarnation, record.status == "left", record.version, record.addresses, record.signature


@dataclass(slots=True)
class MemberList:
    """Records and states of all known peers."""

    verify: Callable[[Record], bool]  # whether a record is signed by its peer, for this swarm
    gate: Gate  # admission control
    address_quota: Callable[[Record], AddressQuota] | None = None
    """The group and capacity of a record's addresses; one group of max_members if not given."""
    max_members: int = MAX_MEMBERS  # capacity; beyond it a newcomer replaces the oldest tombstone, or is not added
    tombstone_s: float = TOMBSTONE_S  # seconds for which dead and departed members are stored
    _members: dict[str, Member] = field(default_factory=dict)
    _cached: tuple[tuple[str, ...], bytes] | None = None
    _entries: dict[str, bytes] = field(default_factory=dict)  # table entries, by peer
    _table: Table | None = None
    _groups: dict[str, str] = field(default_factory=dict)
    _in_group: Counter[str] = field(default_factory=Counter)
    _tombstones_in_group: Counter[str] = field(default_factory=Counter)

    @property
    def members(self) -> Mapping[str, Member]:
        """Return all known peers by id, tombstones included."""
        return MappingProxyType(self._members)

    @property
    def alive(self) -> tuple[str, ...]:
        """Sorted ids of the peers that are alive or suspect."""
        return self._listed()[0]

    @property
    def digest(self) -> bytes:
        """Return the digest of the live set."""
        return self._listed()[1]

    @property
    def size(self) -> int:
        """Return the number of peers that are alive or suspect."""
        return len(self._entries)

    @property
    def full(self) -> bool:
        """Tell if it has no room for a newcomer; dead and left members make room."""
        return self.size >= self.max_members

    @property
    def table(self) -> Table:
        """The records of peers that are alive or suspect, to be compared with another node's."""
        if self._table is None:
            self._table = Table((entry, peer) for peer, entry in self._entries.items())
        return self._table

    @property
    def records(self) -> tuple[Record, ...]:
        """Records to send to others, sorted by peer: of present and left members. Death is a local belief and is not sent as a record."""
        return tuple(member.record for _, member in sorted(self._members.items()) if member.status != "dead")

    def is_news(self, record: Record) -> bool:
        """Tell if a record is newer than the stored one of its peer."""
        known = self._members.get(record.peer)
        return known is None or order_of(record) > order_of(known.record)

    def validate(self, records: Iterable[Record], source: str) -> None:
        """Verify the signatures and credentials of those records, from `source`, that are newer than the stored ones.

        Raises RemoteProtocolError: "record_forged", or a fault that the gate finds and an honest sender would not have forwarded.
        """
        for record in filter(self.is_news, records):
            if not self.verify(record):
                raise RemoteProtocolError(source, "record_forged")
            fault = self.gate.fault(record)
            if fault:
                raise RemoteProtocolError(source, fault)

    def merge(self, record: Record, now: float) -> list[MemberEvent]:
        """Store a record that passed `validate`, if it is newer, admitted, and there is room -> what changed."""
        known = self._members.get(record.peer)
        if not self.is_news(record):
            return []
        if not self.gate.admits(record) or (known is None and not self._make_room(record)):
            return []
        status: Status = "left" if record.status == "left" else "alive"
        self._put(Member(record, status, now))
        return _difference(known, self._members[record.peer])

    def suspect(self, peer: str, now: float) -> list[MemberEvent]:
        """Suspect an alive member in its current record; no effect on others."""
        return self._believe(peer, "alive", "suspect", Suspected(peer), now)

    def clear_suspicion(self, peer: str, now: float) -> list[MemberEvent]:
        """Clear a suspicion after a frame from the member itself."""
        return self._believe(peer, "suspect", "alive", Changed(peer), now)

    def mark_dead(self, peer: str, now: float) -> list[MemberEvent]:
        """Declare a suspect dead; no effect on others."""
        return self._believe(peer, "suspect", "dead", Died(peer), now)

    def expire_tombstones(self, now: float) -> None:
        """Drop tombstones older than `tombstone_s`."""
        for peer in [p for p, m in self._members.items() if not m.present and now - m.since > self.tombstone_s]:
            self._drop(peer)

    def purge(self) -> list[MemberEvent]:
        """Remove all members that the gate no longer admits."""
        gone = [(peer, m) for peer, m in sorted(self._members.items()) if not self.gate.admits(m.record)]
        for peer, _ in gone:
            self._drop(peer)
        return [Died(peer) for peer, member in gone if member.present]

    def _believe(self, peer: str, before: Status, after: Status, event: MemberEvent, now: float) -> list[MemberEvent]:
        member = self._members.get(peer)
        if member is None or member.status != before:
            return []
        self._put(Member(member.record, after, now))
        return [event]

    def _drop(self, peer: str) -> None:
        member, group = self._members.pop(peer), self._groups.pop(peer, "")
        self._unlist(peer)
        self._in_group[group] -= 1
        if member.present:
            self._cached = None
        else:
            self._tombstones_in_group[group] -= 1
        if not self._in_group[group]:
            del self._in_group[group], self._tombstones_in_group[group]

    def _put(self, member: Member) -> None:
        before = self._members.get(member.record.peer)
        self._members[member.record.peer] = member
        was_present = before is None or before.present
        self._tombstones_in_group[self._groups.get(member.record.peer, "")] += was_present - member.present
        if before is None or before.present != member.present:
            self._cached = None
        if not member.present:
            self._unlist(member.record.peer)
        elif before is None or not before.present or before.record is not member.record:
            self._entries[member.record.peer], self._table = entry_of(member.record), None

    def _unlist(self, peer: str) -> None:
        if self._entries.pop(peer, None) is not None:
            self._table = None

    def _listed(self) -> tuple[tuple[str, ...], bytes]:
        if self._cached is None:
            alive = tuple(sorted(peer for peer, member in self._members.items() if member.present))
            self._cached = alive, digest(alive)
        return self._cached

    def _make_room(self, record: Record) -> bool:
        """Reserve room for a newcomer in its address group, evicting the oldest tombstone if necessary; False if impossible."""
        group, most = self.address_quota(record) if self.address_quota is not None else ("", self.max_members)
        crowded = self._in_group[group] >= most
        if crowded or len(self._members) >= self.max_members:
            if not (self._tombstones_in_group[group] if crowded else self._tombstones_in_group.total()):
                return False
            tombstones = [
                (member.since, peer)
                for peer, member in self._members.items()
                if not member.present and not (crowded and self._groups.get(peer) != group)
            ]
            self._drop(min(tombstones)[1])
        self._groups[record.peer] = group
        self._in_group[group] += 1
        return True


def _difference(known: Member | None, member: Member) -> list[MemberEvent]:
    """Return the events of an accepted record."""
    peer = member.record.peer
    was_present = known is not None and known.present
    updated = known is not None and (known.status == "suspect" or known.record.addresses != member.record.addresses)
    events: list[MemberEvent] = []
    if known is not None and member.record.incarnation > known.record.incarnation:
        events.append(Reborn(peer))
    if member.present and not was_present:
        events.append(Joined(peer))
    elif was_present and not member.present:
        events.append(Left(peer))
    elif updated and member.present and not events:
        events.append(Changed(peer))
    return events
