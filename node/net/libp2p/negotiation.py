"""Agree on a protocol by py-libp2p's multistream-select, within a bounded number of bytes.

py-libp2p's parsers raise exceptions of any kind on hostile bytes; all are caught in `negotiate`.
"""

from collections.abc import Awaitable, Callable, Sequence

from libp2p.protocol_muxer.multiselect import Multiselect
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator

MAX_READ_BYTES = 65535  # bytes read at a time, the length of a Noise record
MAX_NEGOTIATION_BYTES = 128 << 10  # most bytes of negotiation; both handshakes together need one or two thousand


class HandshakeFailed(Exception):
    """The other end has another identity, speaks another protocol, or does not answer; the text says which."""


class Conversation:
    """Input and output of py-libp2p's negotiations, with a bounded number of bytes; `receive` returns b"" at the end, `send` sends all."""

    def __init__(self, receive: Callable[[], Awaitable[bytes | memoryview]], send: Callable[[bytes], Awaitable[None]]) -> None:
        self._receive, self._send = receive, send
        self._spare = MAX_NEGOTIATION_BYTES
        self.rest = b""  # bytes received and not read yet; the next reader gets them first

    async def read(self, n: int) -> bytes:
        """Return at least one byte, at most n; HandshakeFailed at the end, or beyond the bytes that a handshake needs."""
        if not self.rest:
            self.rest = bytes(await self._receive())
        if not self.rest:
            raise HandshakeFailed("connection closed during the handshake")
        if n > MAX_READ_BYTES or n > self._spare:
            raise HandshakeFailed("too many bytes in a handshake")
        taken, self.rest = self.rest[:n], self.rest[n:]
        self._spare -= len(taken)
        return taken

    async def write(self, data: bytes) -> None:
        """Send all of these bytes."""
        await self._send(data)


async def negotiate(conversation: Conversation, protocols: Sequence[str], *, initiator: bool) -> str:
    """Agree on the first of our protocols that both ends speak (multistream-select); HandshakeFailed if there is none."""
    communicator = MultiselectCommunicator(conversation)
    try:
        if initiator:
            return str(await MultiselectClient().select_one_of(protocols, communicator))
        protocol, _ = await Multiselect(dict.fromkeys(protocols)).negotiate(communicator)
    except Exception as error:
        raise HandshakeFailed(f"no agreement on {' or '.join(protocols)}: {reason_of(error)}") from error
    if protocol is None:
        raise HandshakeFailed("the empty protocol was proposed")
    return str(protocol)


def reason_of(error: Exception) -> str:
    """Return the first cause of an error, in one line of at most 160 characters."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return f"{type(error).__name__} {error}".strip().splitlines()[0][:160]
