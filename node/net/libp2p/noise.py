"""From a TCP stream to an authenticated, encrypted channel: multistream-select and the Noise XX handshake of py-libp2p, then our own
reader and writer of full-size records (same wire format, less than half the work).

py-libp2p's parsers raise exceptions of any kind on hostile bytes; all are caught in `negotiate` and `secure`.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio
from libp2p.crypto.ed25519 import create_new_key_pair as identity_key_pair
from libp2p.crypto.keys import KeyPair, KeyType
from libp2p.crypto.serialization import key_type_to_public_key_deserializer
from libp2p.crypto.x25519 import create_new_key_pair as noise_key_pair
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect import Multiselect
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.security.noise.patterns import PatternXX
from noise.connection import NoiseConnection  # type: ignore[import-untyped]
from noise.exceptions import NoiseInvalidMessage, NoiseMaxNonceError  # type: ignore[import-untyped]

from starling.node.net.libp2p import yamux

NOISE_PROTOCOL_ID = "/noise"
MAX_RECORD_BYTES = 65535
MAX_PLAIN_BYTES = MAX_RECORD_BYTES - 16
MAX_NEGOTIATION_BYTES = 128 << 10  # both handshakes together need one or two thousand
READ_BYTES = 256 << 10

# py-libp2p logs peers' errors, to stderr unless configured. Those that matter are faults in our own log.
logging.getLogger("libp2p").addHandler(logging.NullHandler())
logging.getLogger("libp2p").propagate = False

# Our peers are Ed25519 keys. Reading an RSA key, py-libp2p takes a private one as well and tests its primes: two seconds for 9 kB from
# an unauthenticated peer.
for _kind in (KeyType.RSA, KeyType.Secp256k1):
    key_type_to_public_key_deserializer.pop(_kind.value, None)


class HandshakeFailed(Exception):
    """The other end has another identity, speaks another protocol, or does not answer, as one line says."""


class ChannelBroken(Exception):
    """The connection cannot be used any more."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Our keys: the permanent identity key, and a fresh one for Noise."""

    keys: KeyPair
    noise_keys: KeyPair
    peer: str

    @classmethod
    def from_seed(cls, seed: bytes) -> "Identity":
        """The identity of an Ed25519 seed; ValueError unless it has 32 bytes."""
        if len(seed) != 32:
            raise ValueError(f"an Ed25519 seed has 32 bytes, got {len(seed)}")
        keys = identity_key_pair(seed)
        return cls(keys, noise_key_pair(), ID.from_pubkey(keys.public_key).to_base58())


class Conversation:
    """py-libp2p's negotiations read from this a bounded number of bytes; `receive` gives b"" at the end, `send` sends all."""

    def __init__(self, receive: Callable[[], Awaitable[bytes]], send: Callable[[bytes], Awaitable[None]]) -> None:
        self._receive, self._send = receive, send
        self._spare = MAX_NEGOTIATION_BYTES
        self.rest = b""  # received but not read yet; the next reader gets it first

    async def read(self, n: int) -> bytes:
        """At least one byte, at most n; HandshakeFailed at the end, or beyond the bytes that a handshake needs."""
        if not self.rest:
            self.rest = await self._receive()
        if not self.rest:
            raise HandshakeFailed("connection closed during the handshake")
        if n > MAX_RECORD_BYTES or n > self._spare:
            raise HandshakeFailed("too many bytes in a handshake")
        taken, self.rest = self.rest[:n], self.rest[n:]
        self._spare -= len(taken)
        return taken

    async def write(self, data: bytes) -> None:
        """All of these bytes."""
        await self._send(data)


async def negotiate(conversation: Conversation, protocols: Sequence[str], *, initiator: bool) -> str:
    """Agree on the first of our protocols that both ends speak (multistream-select); HandshakeFailed if there is none."""
    communicator = MultiselectCommunicator(conversation)
    try:
        if initiator:
            return str(await MultiselectClient().select_one_of(protocols, communicator))
        protocol, _ = await Multiselect(dict.fromkeys(protocols)).negotiate(communicator)
    except Exception as error:
        raise HandshakeFailed(f"no agreement on {' or '.join(protocols)}: {_why(error)}") from error
    if protocol is None:
        raise HandshakeFailed("the empty protocol was proposed")
    return str(protocol)


class Channel:
    """Encrypted bytes over a TCP stream, after the handshake and with bytes received by it. Close it after a cancelled write."""

    def __init__(self, stream: trio.SocketStream, state: NoiseConnection, received: bytes) -> None:
        self._stream, self._state = stream, state
        self._buffer = bytearray(received)

    async def read(self, limit: int = READ_BYTES) -> bytes:
        """Received bytes, at least one; b"" at the end; ChannelBroken if the connection broke or a record is forged."""
        while True:
            plain = self._open_records()
            if plain:
                return plain
            try:
                data = await self._stream.receive_some(limit)
            except trio.BrokenResourceError as error:
                raise ChannelBroken("connection reset") from error
            if not data:
                return b""
            self._buffer += data

    async def write(self, data: bytes) -> None:
        """All of `data`, in full-size records; ChannelBroken if the connection broke."""
        sealed: list[bytes] = []
        try:
            for start in range(0, len(data), MAX_PLAIN_BYTES):
                record = self._state.encrypt(data[start : start + MAX_PLAIN_BYTES])
                sealed += (len(record).to_bytes(2, "big"), record)
            await self._stream.send_all(b"".join(sealed))
        except (trio.BrokenResourceError, NoiseMaxNonceError) as error:
            raise ChannelBroken("connection reset") from error

    def _open_records(self) -> bytes:
        plain, start, end = [], 0, len(self._buffer)
        while end - start >= 2:
            stop = start + 2 + int.from_bytes(self._buffer[start : start + 2], "big")
            if stop > end:
                break
            try:
                plain.append(self._state.decrypt(bytes(self._buffer[start + 2 : stop])))
            except (NoiseInvalidMessage, NoiseMaxNonceError, ValueError) as error:
                raise ChannelBroken("a record is forged") from error
            start = stop
        del self._buffer[:start]
        return b"".join(plain)


async def secure(stream: trio.SocketStream, identity: Identity, expected: str | None) -> tuple[str, Channel, bytes]:
    """Authenticate the peer, the one `expected` or, where it dialled us, any, and agree on the muxer.

    Returns its id, the channel to it, and received bytes for the muxer. Raises HandshakeFailed with the reason.
    """
    raw = Conversation(lambda: stream.receive_some(READ_BYTES), stream.send_all)
    dialler = expected is not None
    await negotiate(raw, [NOISE_PROTOCOL_ID], initiator=dialler)
    local = ID.from_pubkey(identity.keys.public_key)
    pattern = PatternXX(local, identity.keys.private_key, identity.noise_keys.private_key)
    try:
        if expected is not None:
            session = await pattern.handshake_outbound(raw, ID.from_base58(expected))
        else:
            session = await pattern.handshake_inbound(raw)
    except Exception as error:
        raise HandshakeFailed(f"Noise: {_why(error)}") from error
    channel = Channel(stream, session.conn.noise_state, raw.rest)
    muxer = Conversation(channel.read, channel.write)
    await negotiate(muxer, [yamux.PROTOCOL_ID], initiator=dialler)
    return session.get_remote_peer().to_base58(), channel, muxer.rest


def _why(error: Exception) -> str:
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return f"{type(error).__name__} {error}".strip().splitlines()[0][:160]
