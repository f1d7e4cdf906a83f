"""Turn a TCP stream into an authenticated, encrypted channel: the Noise XX handshake of py-libp2p, then a reader and writer of full-size
records of this project (same wire format, less than half the work).

py-libp2p's parsers raise exceptions of any kind on hostile bytes; all are caught in `secure` and `recognise`.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from libp2p.crypto.ed25519 import create_new_key_pair as identity_key_pair
from libp2p.crypto.keys import KeyPair, KeyType
from libp2p.crypto.serialization import key_type_to_public_key_deserializer
from libp2p.crypto.x25519 import create_new_key_pair as noise_key_pair
from libp2p.peer.id import ID
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from libp2p.security.noise.patterns import PatternXX
from noise.connection import NoiseConnection  # type: ignore[import-untyped]
from noise.state import CipherState  # type: ignore[import-untyped]

from starling.node.net.libp2p import yamux
from starling.node.net.libp2p.negotiation import Conversation, HandshakeFailed, negotiate, reason_of

NOISE_PROTOCOL_ID = "/noise"
MAX_RECORD_BYTES = 65535
TAG_BYTES = 16
MAX_PLAIN_BYTES = MAX_RECORD_BYTES - TAG_BYTES
RECORDS_AT_ONCE = 4  # records encrypted before they are sent: their buffer stays in a processor's cache
READ_BYTES = 256 << 10

# py-libp2p logs peers' errors, to stderr unless configured. Those that matter are faults in our own log.
logging.getLogger("libp2p").addHandler(logging.NullHandler())
logging.getLogger("libp2p").propagate = False

# Our peers are Ed25519 keys. Reading an RSA key, py-libp2p takes a private one as well and tests its primes: two seconds for 9 kB from
# an unauthenticated peer.
for _kind in (KeyType.RSA, KeyType.Secp256k1):
    key_type_to_public_key_deserializer.pop(_kind.value, None)


class ChannelBroken(Exception):
    """The connection cannot be used any more."""


@dataclass(frozen=True, slots=True)
class Identity:
    """This node's keys: the permanent identity key, and a fresh one for Noise."""

    keys: KeyPair
    noise_keys: KeyPair
    peer: str

    @classmethod
    def from_seed(cls, seed: bytes) -> "Identity":
        """Return the identity of an Ed25519 seed; ValueError unless it has 32 bytes."""
        if len(seed) != 32:
            raise ValueError(f"an Ed25519 seed has 32 bytes, got {len(seed)}")
        keys = identity_key_pair(seed)
        return cls(keys, noise_key_pair(), ID.from_pubkey(keys.public_key).to_base58())


class Carrier(Protocol):
    """A socket, or its replacement; see `trio.SocketStream`."""

    async def receive_some(self, max_bytes: int | None = None, /) -> bytes | memoryview:
        """Return received bytes; b"" at the end."""

    async def send_all(self, data: bytes | memoryview, /) -> None:
        """Send all of these bytes; the buffer may change afterwards."""


class _Cipher:
    """Cipher of one direction of a session after its handshake (Noise 5.1, ChaChaPoly; the nonce counts records after 32 zero bits)."""

    def __init__(self, state: CipherState) -> None:
        self._key = ChaCha20Poly1305(state.k)
        self._records: int = state.n

    def seal(self, plain: memoryview, record: memoryview) -> None:
        """Encrypt into a buffer of TAG_BYTES more."""
        self._key.encrypt_into(self._nonce(), plain, None, record)

    def open(self, record: memoryview) -> bytes:
        """Return the plain text; ChannelBroken if it is not the next record."""
        try:
            plain: bytes = self._key.decrypt(self._nonce(), record, None)
        except InvalidTag as error:
            raise ChannelBroken("a record is forged") from error
        return plain

    def _nonce(self) -> bytes:
        self._records += 1
        return bytes(4) + (self._records - 1).to_bytes(8, "little")


class Channel:
    """Encrypted bytes over a TCP stream, after the handshake and with bytes received by it. Close it after a cancelled write.

    noiseprotocol makes the keys. Of a full record its wrappers would take as long as the encryption itself.
    """

    def __init__(self, stream: Carrier, state: NoiseConnection, received: bytes) -> None:
        self._stream = stream
        self._sealing = _Cipher(state.noise_protocol.cipher_state_encrypt)
        self._opening = _Cipher(state.noise_protocol.cipher_state_decrypt)
        self._received = received
        self._plain = self._sealed = memoryview(b"")
        self._buffer = bytearray()  # bytes of an incomplete record

    @property
    def buffered(self) -> int:
        """Return the bytes of an incomplete record, fewer than MAX_RECORD_BYTES + 2."""
        return len(self._buffer)

    async def read(self) -> bytes:
        """Return received bytes, at least one; b"" at the end; ChannelBroken as `records`."""
        return b"".join(await self.records(READ_BYTES))

    async def records(self, limit: int) -> list[bytes]:
        """Return the records received in at most `limit` bytes, at least one and none of them empty; [] at the end.

        Raises ChannelBroken: the connection broke, or a record is forged.
        """
        while True:
            data: bytes | memoryview = self._received
            self._received = b""
            if not data:
                try:
                    data = await self._stream.receive_some(limit)
                except trio.BrokenResourceError as error:
                    raise ChannelBroken("connection reset") from error
            opened = [plain for plain in self._open_records(memoryview(data)) if plain]
            if opened or not data:
                return opened

    async def write(self, *pieces: bytes | bytearray | memoryview) -> None:
        """Send all of these bytes in full-size records. Raises ChannelBroken if the connection broke."""
        for sealed in self._seal(pieces):
            try:
                await self._stream.send_all(sealed)
            except trio.BrokenResourceError as error:
                raise ChannelBroken("connection reset") from error

    def _seal(self, pieces: Sequence[bytes | bytearray | memoryview]) -> Iterator[memoryview]:
        """Yield encrypted records of these bytes, a few at a time, each time in the same buffer."""
        total = sum(map(len, pieces))
        most = min(total, MAX_PLAIN_BYTES)
        records = min(-(-total // MAX_PLAIN_BYTES), RECORDS_AT_ONCE)
        if len(self._plain) < most or len(self._sealed) < records * (most + 2 + TAG_BYTES):
            self._plain, self._sealed = (memoryview(bytearray(most)), memoryview(bytearray(records * (most + 2 + TAG_BYTES))))
        filled = end = 0
        for each in pieces:
            piece = memoryview(each)
            while piece:
                part = piece[: most - filled]
                self._plain[filled : filled + len(part)] = part
                filled, piece = filled + len(part), piece[len(part) :]
                if filled == most:
                    end, filled = self._add_record(end, filled), 0
                    if end + most + 2 + TAG_BYTES > len(self._sealed):
                        yield self._sealed[:end]
                        end = 0
        if filled:
            end = self._add_record(end, filled)
        if end:
            yield self._sealed[:end]

    def _add_record(self, at: int, filled: int) -> int:
        """Encrypt the first bytes of the plain text into the buffer of records at `at` -> the end of the record."""
        begin, end = at + 2, at + 2 + filled + TAG_BYTES
        self._sealed[at:begin] = (filled + TAG_BYTES).to_bytes(2, "big")
        self._sealing.seal(self._plain[:filled], self._sealed[begin:end])
        return end

    def _open_records(self, data: memoryview) -> Iterator[bytes]:
        """Yield the plain text of each complete record; only one that was cut is copied before."""
        while data:
            cut = self._buffer
            if not cut and len(data) >= 2 and len(data) >= (size := 2 + int.from_bytes(data[:2], "big")):
                yield self._opening.open(data[2:size])
                data = data[size:]
                continue
            missing = (2 if len(cut) < 2 else 2 + int.from_bytes(cut[:2], "big")) - len(cut)
            cut += data[:missing]
            data = data[missing:]
            if len(cut) >= 2 and len(cut) == 2 + int.from_bytes(cut[:2], "big"):
                yield self._opening.open(memoryview(cut)[2:])
                self._buffer = bytearray()


async def secure(stream: Carrier, identity: Identity, expected: str | None) -> tuple[str, Channel, bytes]:
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
    except PeerIDMismatchesPubkey as error:
        raise HandshakeFailed("another peer answers there") from error
    except Exception as error:
        raise HandshakeFailed(f"Noise: {reason_of(error)}") from error
    channel = Channel(stream, session.conn.noise_state, raw.rest)
    muxer = Conversation(channel.read, channel.write)
    await negotiate(muxer, [yamux.PROTOCOL_ID], initiator=dialler)
    return session.get_remote_peer().to_base58(), channel, muxer.rest


async def recognise(stream: trio.SocketStream, identity: Identity, expected: str) -> bool:
    """Tell if the peer `expected` answers. Stops before the message that would complete the handshake and reveal this node's id."""
    raw = Conversation(lambda: stream.receive_some(READ_BYTES), stream.send_all)
    half = _Half(raw)
    pattern = PatternXX(ID.from_pubkey(identity.keys.public_key), identity.keys.private_key, identity.noise_keys.private_key)
    try:
        await negotiate(raw, [NOISE_PROTOCOL_ID], initiator=True)
        await pattern.handshake_outbound(half, ID.from_base58(expected))
    except Exception:  # noqa: BLE001 - whatever it was, it was not the peer
        return half.recognised
    return False


@dataclass(slots=True)
class _Half:
    """The first half of a handshake: the initiator sends its last message only after it has verified the responder."""

    raw: Conversation
    recognised: bool = False
    _answered: bool = False

    async def read(self, n: int) -> bytes:
        data = await self.raw.read(n)
        self._answered = True
        return data

    async def write(self, data: bytes) -> None:
        if self._answered:
            self.recognised = True
            raise HandshakeFailed("enough was seen")
        await self.raw.write(data)
