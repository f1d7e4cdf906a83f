"""Messages that set up circuits and simultaneous opens, from any sender."""

from collections.abc import Iterator

from starling.node.net.libp2p.addresses import parse
from starling.node.net.libp2p.circuit import (
    MAX_MESSAGE_BYTES,
    HolePunch,
    HopMessage,
    Identify,
    Limit,
    PeerId,
    Reservation,
    Status,
    StopMessage,
    endpoints_of,
    framed,
    packed,
    peer_of,
    raw_of,
    read_message,
)
from starling.node.net.libp2p.negotiation import Conversation, HandshakeFailed
from tests.fuzz.target import Target, one_line
from tests.fuzz.targets.text import PEER
from tests.fuzz.virtual import at_once

KINDS = (HopMessage, StopMessage, HolePunch, Identify)
MOST = 4


async def _read(data: bytes) -> bool:
    kind, chunks = KINDS[data[0] % len(KINDS)], iter([data[1:6], data[6:], b""])

    async def receive() -> bytes:
        return next(chunks, b"")

    async def send(_data: bytes) -> None:
        raise AssertionError("nothing is answered to a message that is not read yet")

    conversation = Conversation(receive, send)
    try:
        message = await read_message(conversation, kind)
    except HandshakeFailed as error:
        one_line(error)
        return False
    assert len(data) - len(conversation.rest) <= MAX_MESSAGE_BYTES + 8
    told = list(message.ObsAddrs) if kind is HolePunch else [message.observed_addr] if kind is Identify else []
    found = endpoints_of(told, MOST)
    assert len(found) <= MOST
    for each in found:
        assert each.port
        assert not each.relay
        assert parse(str(each)) == each
    if kind in {HopMessage, StopMessage}:
        try:
            assert raw_of(peer_of(message.peer.id)) == message.peer.id
        except HandshakeFailed as error:
            one_line(error)
            return False
    return True


def _run(data: bytes) -> bool:
    return bool(data) and at_once(_read, data)


def _seeds() -> Iterator[bytes]:
    peer, limit = PeerId(id=raw_of(PEER)), Limit(duration=60, data=1 << 20)
    told = [packed(parse(f"/{host}/tcp/4001")) for host in ("ip4/192.0.2.7", "ip6/2001:db8::1", "dns4/example.org")]
    messages = (
        HopMessage(type=HopMessage.CONNECT, peer=peer),
        StopMessage(type=StopMessage.CONNECT, peer=peer, limit=limit),
        HolePunch(type=HolePunch.CONNECT, ObsAddrs=told),
        Identify(observed_addr=told[0], agent_version="stock", protocols=["/a", "/b"]),
    )
    for number, message in enumerate(messages):
        yield bytes([number]) + framed(message)
    reservation = Reservation(expire=1 << 40, addrs=told)
    yield b"\0" + framed(HopMessage(type=HopMessage.STATUS, status=Status.OK, peer=peer, reservation=reservation, limit=limit))
    yield b"\2" + framed(HolePunch(type=HolePunch.SYNC))


def _lures() -> list[bytes]:
    lengths = (b"\xff\xff\xff\x7f", b"\x80\x80\x01", b"\xff\x7f", b"\x80\x00", b"\x00")
    bodies = (b"", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x12\xff\x01\x0a", b"\x0b\x0b\x0b", b"\x0a\x05\x04\x01\x02\x03\x04")
    return [bytes([kind]) + length + body for kind in range(len(KINDS)) for length in lengths for body in bodies]


MESSAGES = Target(_run, _seeds, _lures, reach=10, most_bytes=MAX_MESSAGE_BYTES + 64)
