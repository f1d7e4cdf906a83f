"""Handshakes with a peer that deviates at any step."""

import time
from functools import cache

import trio
import trio.testing
from noise.connection import Keypair, NoiseConnection

from starling.node.net.libp2p import noise
from starling.node.net.libp2p.negotiation import MAX_NEGOTIATION_BYTES, HandshakeFailed
from starling.node.net.libp2p.noise import Identity, secure
from tests.fuzz.target import Choices, Target, one_line
from tests.fuzz.targets.transport import multistream
from tests.fuzz.virtual import at_once

MOST_SECONDS = 1.0
VICTIM, ATTACKER = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))


class _Attacker:
    """Handshakes correctly except where the choices say otherwise."""

    def __init__(self, stream: trio.StapledStream, choices: Choices, *, dialler: bool) -> None:
        self._stream, self._choices, self._dialler = stream, choices, dialler
        self._buffer = b""
        self.honest = True

    async def run(self) -> None:
        try:
            await self._talk()
        except (trio.BrokenResourceError, trio.ClosedResourceError, EOFError):
            pass
        except Exception:
            if self.honest:
                raise
        await self._stream.aclose()

    async def _talk(self) -> None:
        await self._send(multistream("/noise"))
        await self._read(len(multistream("/noise")))
        state = NoiseConnection.from_name(b"Noise_XX_25519_ChaChaPoly_SHA256")
        state.set_keypair_from_private_bytes(Keypair.STATIC, ATTACKER.noise_keys.private_key.to_bytes())
        state.set_as_initiator() if self._dialler else state.set_as_responder()
        state.start_handshake()
        if self._dialler:
            await self._noise(state.write_message(self._early()))
        state.read_message(await self._noise_read())
        await self._noise(state.write_message(self._payload()))
        if not self._dialler:
            state.read_message(await self._noise_read())
        await self._noise(state.encrypt(multistream("/yamux/1.0.0")))
        while True:
            await self._noise_read()

    def _early(self) -> bytes:
        return b"" if self._choices.below(8) else self._choices.piece()

    def _payload(self) -> bytes:
        local = noise.ID.from_pubkey(ATTACKER.keys.public_key)
        payload = noise.PatternXX(local, ATTACKER.keys.private_key, ATTACKER.noise_keys.private_key).make_handshake_payload().serialize()
        how = self._choices.below(8)
        self.honest = self.honest and how not in {1, 2, 3}
        match how:
            case 1:
                at = self._choices.below(len(payload))
                return bytes(payload[:at] + self._choices.piece() + payload[at + self._choices.below(8) :])
            case 2:
                return self._choices.piece()
            case 3:
                key = self._choices.of(KEYS)
                return b"\x0a" + _varint(len(key)) + key + b"\x12\x40" + bytes(64)
            case _:
                return bytes(payload)

    async def _noise(self, message: bytes) -> None:
        await self._send(len(message).to_bytes(2, "big") + bytes(message))

    async def _noise_read(self) -> bytes:
        return await self._read(int.from_bytes(await self._read(2), "big"))

    async def _send(self, data: bytes) -> None:
        choices = self._choices
        how = choices.below(16)
        self.honest = self.honest and how not in {1, 2, 3, 4}
        match how:
            case 1:
                at = choices.below(len(data))
                data = data[:at] + bytes([data[at] ^ (1 << choices.below(8))]) + data[at + 1 :]
            case 2:
                data = choices.piece()
            case 3:
                data = data[: choices.below(len(data))]
            case 4:
                data = choices.piece() + data
        await self._stream.send_all(data)

    async def _read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            part = await self._stream.receive_some(65536)
            if not part:
                raise EOFError
            self._buffer += bytes(part)
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken


def _varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])


def _der(*numbers: int) -> bytes:
    """A sequence of integers, as RSA keys are written."""

    def element(tag: int, body: bytes) -> bytes:
        size = len(body).to_bytes((len(body).bit_length() + 7) // 8, "big")
        return bytes([tag, len(body)] if len(body) < 128 else [tag, 128 + len(size), *size]) + body

    return element(0x30, b"".join(element(2, n.to_bytes(n.bit_length() // 8 + 1, "big")) for n in numbers))


@cache
def _rsa(*, private: bool) -> bytes:
    """An identity key of primes with thousands of digits, whose primality test takes seconds."""
    p, q = 2**11213 - 1, 2**4423 - 1
    n, e = p * q, 65537
    d = pow(e, -1, (p - 1) * (q - 1))
    key = _der(0, n, e, d, p, q, d % (p - 1), d % (q - 1), pow(q, -1, p)) if private else _der(n, e)
    return b"\x08\0\x12" + _varint(len(key)) + key


KEYS = (
    _rsa(private=True),
    _rsa(private=False),
    b"\x08\1\x12\x20" + bytes(32),
    b"\x08\1\x12\x20" + b"\xff" * 32,
    b"\x08\2\x12\x21\2" + bytes(32),
    b"\x08\3\x12\4abcd",
    b"\x08\x63\x12\0",
    b"",
)


async def _handshake_program(data: bytes) -> bool:
    """First byte: who begins."""
    choices = Choices(data)
    attacker_dials = choices.flag()
    ours, theirs = trio.testing.memory_stream_pair()
    attacker = _Attacker(theirs, choices, dialler=attacker_dials)
    made, began = False, time.process_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(attacker.run)
        try:
            with trio.move_on_after(10.0):
                peer, _, rest = await secure(ours, VICTIM, None if attacker_dials else ATTACKER.peer)
                assert peer == ATTACKER.peer, "an identity needs its key"
                assert len(rest) <= MAX_NEGOTIATION_BYTES
                made = True
        except HandshakeFailed as error:
            one_line(error)
        assert made or not attacker.honest
        assert time.process_time() - began < MOST_SECONDS, "strangers cost little"
        await ours.aclose()
        nursery.cancel_scope.cancel()
    return made


def _handshake_lures() -> list[bytes]:
    dialled = [bytes([1, 0, 1, 0, 3, number, 0, 0, 0, 0]) for number in range(len(KEYS))]
    return dialled + [bytes([0, 0, 3, number, 0, 0, 0, 0]) for number in range(len(KEYS))]


HANDSHAKE = Target(
    lambda data: at_once(_handshake_program, data),
    lambda: [b"\1" + bytes(40), b"\0" + bytes(40)],
    _handshake_lures,
    most_bytes=512,
    spare_bytes=4 << 20,
    reach=75,
)
