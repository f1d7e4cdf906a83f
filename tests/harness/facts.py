"""Facts of exchanges, as a service reports them."""

from starling.gossip.wire.schema import Ack, Message, Pull, Pulled, Request, Response
from starling.node.daemon.exchange.facts import About, Queued, Received, Sent


def about(peer: str, kind: type[Message], number: int = 1, payload_bytes: int = 0, round: int = 0) -> About:
    return About(peer, kind, number, payload_bytes, round)


def queued_request(peer: str, number: int, payload_bytes: int) -> Queued:
    return Queued(about(peer, Request, number, payload_bytes))


def queued_pull(peer: str, number: int) -> Queued:
    return Queued(about(peer, Pull, number))


def sent_request(peer: str, frame_bytes: int, seconds: float, number: int = 1) -> Sent:
    return Sent(about(peer, Request, number, frame_bytes), frame_bytes, seconds)


def sent_response(peer: str, frame_bytes: int, seconds: float) -> Sent:
    return Sent(about(peer, Response, 1, frame_bytes), frame_bytes, seconds)


def sent_ack(peer: str, frame_bytes: int, seconds: float) -> Sent:
    return Sent(about(peer, Ack), frame_bytes, seconds)


def received_request(peer: str, number: int, payload_bytes: int) -> Received:
    return Received(about(peer, Request, number, payload_bytes), payload_bytes)


def received_response(peer: str, number: int, payload_bytes: int = 0) -> Received:
    return Received(about(peer, Response, number, payload_bytes), payload_bytes)


def received_vector(peer: str, number: int, payload_bytes: int) -> Received:
    return Received(about(peer, Pulled, number, payload_bytes), payload_bytes)
