"""libp2p's messages for circuits and hole punching, and a circuit as a byte stream.

Each is a protobuf behind its length. Bytes of others raise HandshakeFailed and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import trio
from google.protobuf.message import DecodeError, Message
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Limit, PeerId, Reservation, Status, StopMessage
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from multiaddr import Multiaddr

from starling.node.net.libp2p import addresses
from starling.node.net.libp2p.addresses import Endpoint
from starling.node.net.libp2p.negotiation import Conversation, HandshakeFailed
from starling.node.net.libp2p.streams import Stream, StreamBroken

HOP, STOP = "/libp2p/circuit/relay/0.2.0/hop", "/libp2p/circuit/relay/0.2.0/stop"
PUNCH, IDENTIFY = "/libp2p/dcutr", "/ipfs/id/1.0.0"
MAX_MESSAGE_BYTES = 8 << 10

M = TypeVar("M", bound=Message)

__all__ = ["HolePunch", "HopMessage", "Identify", "Limit", "PeerId", "Reservation", "Status", "StopMessage"]


async def read_message(conversation: Conversation, kind: type[M]) -> M:
    """Return the next message; HandshakeFailed if it is too long, is none, or the stream ended."""
    size = 0
    for shift in (0, 7):
        (byte,) = await conversation.read(1)
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    else:
        raise HandshakeFailed("a message is too long")
    if size > MAX_MESSAGE_BYTES:
        raise HandshakeFailed("a message is too long")
    data = bytearray()
    while len(data) < size:
        data += await conversation.read(size - len(data))
    return parsed(bytes(data), kind)


def parsed(data: bytes, kind: type[M]) -> M:
    """Return the message in these bytes; HandshakeFailed if there is none."""
    try:
        return kind.FromString(data)
    except (DecodeError, ValueError) as error:
        raise HandshakeFailed("a message cannot be read") from error


def framed(message: Message) -> bytes:
    """Return a message behind its length."""
    data: bytes = message.SerializeToString()
    size, head = len(data), bytearray()
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*head, size)) + data


def peer_of(raw: bytes) -> str:
    """Return the peer id in a message; HandshakeFailed if there is none."""
    if not 1 <= len(raw) <= 64:
        raise HandshakeFailed("a peer id has another length")
    return str(ID(raw).to_base58())


def raw_of(peer: str) -> bytes:
    """Return a peer id in the messages' form; HandshakeFailed if it is none."""
    try:
        return bytes(ID.from_base58(peer).to_bytes())
    except Exception as error:
        raise HandshakeFailed(f"{peer[:80]} is no peer id") from error


def packed(endpoint: Endpoint) -> bytes:
    """Return a multiaddr in binary form; b"" if the endpoint has none."""
    try:
        return bytes(Multiaddr(str(endpoint)).to_bytes())
    except Exception:  # noqa: BLE001 - a name that its library does not take
        return b""


def endpoints_of(raw: Iterable[bytes], most: int) -> tuple[Endpoint, ...]:
    """Return at most `most` of the binary multiaddrs: those that are IP addresses with a TCP port and no relay."""
    found: list[Endpoint] = []
    for each, _ in zip(raw, range(4 * most), strict=False):
        try:
            endpoint = addresses.parse(str(Multiaddr(bytes(each[:256]))))
        except Exception:  # noqa: BLE001, S112 - py-libp2p's parsers raise anything
            continue
        if endpoint.port and endpoint.protocol in {"ip4", "ip6"} and not endpoint.relay and endpoint not in found:
            found.append(endpoint)
    return tuple(found[:most])


class CircuitStream(trio.abc.AsyncResource):
    """A stream of a connection that carries another connection, in place of a socket."""

    def __init__(self, stream: Stream, received: bytes) -> None:
        self._stream, self._received = stream, received

    async def receive_some(self, _max_bytes: int | None = None, /) -> bytes | memoryview:
        """Return received bytes, b"" at the end. Raises BrokenResourceError: the circuit is over."""
        if self._received:
            received, self._received = self._received, b""
            return received
        try:
            return await self._stream.read()
        except StreamBroken as error:
            raise trio.BrokenResourceError from error

    async def send_all(self, data: bytes | memoryview, /) -> None:
        """Queue data, copied, as the caller reuses its buffer. Raises BrokenResourceError: the circuit is over."""
        try:
            await self._stream.write(bytes(data))
        except StreamBroken as error:
            raise trio.BrokenResourceError from error

    async def aclose(self) -> None:
        self._stream.reset()
        await trio.lowlevel.checkpoint()
