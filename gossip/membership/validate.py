"""Validation of control messages, before any part of them is applied."""

from __future__ import annotations

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.membership.member_list import MemberList
from starling.gossip.wire.schema import Acknowledge, Control, Farewell, Hello, Probe, Spread, Sync


def validate(peer: str, message: Control, swarm: str, member_list: MemberList) -> None:
    """Raise if any part of a message is invalid.

    Args:
        peer: the authenticated sender.
        message: received from it.
        swarm: id of our swarm.
        member_list: verifies records and their admission.

    Raises:
        RemoteProtocolError: foreign_swarm, record_of_another, record_forged, rumor_of_another, or what the gate says.
    """
    match message:
        case Hello(record=record) | Farewell(record=record):
            if record.peer != peer:
                raise RemoteProtocolError(peer, "record_of_another")
            if record.swarm != swarm:
                raise RemoteProtocolError(peer, "foreign_swarm")
            member_list.validate((record,), peer)
        case Spread(records=records) | Sync(records=records):
            member_list.validate(records, peer)
        case _:
            pass
    match message:
        case Probe(rumors=rumors) | Acknowledge(rumors=rumors) | Spread(rumors=rumors):
            if any(rumor.source != peer for rumor in rumors):
                raise RemoteProtocolError(peer, "rumor_of_another")
        case _:
            pass
