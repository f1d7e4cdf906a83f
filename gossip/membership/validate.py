"""What is wrong with a control message, looked at before anything of it takes effect."""

from __future__ import annotations

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.membership.member_list import View
from starling.gossip.wire.schema import Acknowledge, Control, Farewell, Hello, Probe, Spread, Sync


def screen(peer: str, message: Control, swarm: str, view: View) -> None:
    """Refuse a bad message as a whole.

    Args:
        peer: who sent it.
        message: what it sent.
        swarm: our swarm's id.
        view: knows whose records are signed, and who may be a member.

    Raises:
        RemoteProtocolError: foreign swarm, forged record, or word in another's name.
    """
    match message:
        case Hello(record=record) | Farewell(record=record):
            if record.peer != peer:
                raise RemoteProtocolError(peer, "record_of_another")
            if record.swarm != swarm:
                raise RemoteProtocolError(peer, "foreign_swarm")
            view.screen((record,), peer)
        case Spread(records=records) | Sync(records=records):
            view.screen(records, peer)
        case _:
            pass
    match message:
        case Probe(rumors=rumors) | Acknowledge(rumors=rumors) | Spread(rumors=rumors):
            if any(rumor.source != peer for rumor in rumors):
                raise RemoteProtocolError(peer, "rumor_of_another")
        case _:
            pass
