"""Network, operator and inviter of each member, by which the number of its peers is limited."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starling.gossip.membership.member_list import MAX_MEMBERS, AddressQuota, Member
from starling.gossip.wire.schema import Record
from starling.node.admission.gate import Gatekeeper
from starling.node.net.api import Network
from starling.robust.sampling import labels, prefix_of

ORIGIN_SHARE, ELSEWHERE_SHARE = 64, 8
"""One public address prefix has at most 1/ORIGIN_SHARE of all places for members; members without a known public address, which costs
nothing to claim, at most 1/ELSEWHERE_SHARE."""
NOWHERE = frozenset({None, "named", "relayed"})  # values of `prefix_of` for addresses that do not locate their peer


@dataclass(frozen=True, slots=True)
class Origins:
    """Addresses, networks, operators and inviters of one node's members."""

    network: Network
    gate: Gatekeeper
    table: Callable[[], Mapping[str, Member]]
    """Returns all known members."""

    def prefixes(self, peer: str) -> frozenset[str]:
        """Return the labels by which peers of one network or operator are limited.

        The public address prefix of its connection, none if that is private, and without a connection those of its record, where all
        host names are one; and the operator that its credential names.
        """
        member = self.table().get(peer)
        if member is None:
            return frozenset()
        origin = self.network.origin(peer)
        named = labels(() if origin is not None else member.record.addresses, self.operator_of(peer))
        return named | {origin} if origin else named

    def operator_of(self, peer: str) -> str:
        """Return the operator that a member's credential names, unverified; "" for none."""
        member = self.table().get(peer)
        return "" if member is None else self.gate.credential(member.record).operator

    def inviter_of(self, peer: str) -> str | None:
        """Return the inviter of a peer; None for the creator, an unknown peer, and in swarms without invitations."""
        member = self.table().get(peer)
        chain = () if member is None else self.gate.inviters(member.record)
        return chain[-1] if chain else None

    def inviters_of(self, peer: str) -> tuple[str, ...]:
        """Return the peers that answer for a peer, its own inviter last; never the creator, whom guests could else get banned."""
        member = self.table().get(peer)
        chain = () if member is None else self.gate.inviters(member.record)
        return chain[1:]

    def invitations_of(self, peer: str) -> tuple[str, ...]:
        """Return the keys that the invitations down to a peer were given to, as peer ids, its own last."""
        member = self.table().get(peer)
        return () if member is None else self.gate.invitations(member.record)

    def met(self, peer: str) -> tuple[str, ...]:
        """Return addresses of a member, but not of this node, at which this node met it; first the one where our dial was answered."""
        if peer == self.network.peer_id:
            return ()
        answered, met = self.network.answered(peer), self.network.met(peer, self.table()[peer].record.addresses)
        return met if answered is None else tuple(dict.fromkeys((answered, *met)))

    def announced(self, peer: str) -> tuple[str, ...]:
        """Return the addresses in the record of a member; empty for others."""
        member = self.table().get(peer)
        return () if member is None else member.record.addresses

    def source(self, peer: str) -> str:
        """Return the public address prefix of a peer's connection; its id where that is unknown or private."""
        return self.network.origin(peer) or peer

    def quota(self, record: Record) -> AddressQuota:
        """Return the network that a record counts for, and how many of its members are allowed."""
        origin = self.network.origin(record.peer)
        claimed = (prefix_of(address) for address in record.addresses)
        place = origin or next((prefix for prefix in claimed if prefix not in NOWHERE), None) or ""
        return place, MAX_MEMBERS // (ORIGIN_SHARE if place else ELSEWHERE_SHARE)
