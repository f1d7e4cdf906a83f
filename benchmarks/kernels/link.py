"""Throughput from one process to another: over a node's connection, and over plain and encrypted TCP.

    python -m starling.kernels.link receive HOST PORT                                the receiving end, until its standard input closes
    python -m starling.kernels.link send HOST PORT TRANSPORT BYTES SECONDS RATE     one case, as JSON on standard output

    starling   a node's network as the daemon opens it, `send` to `inbound`: lanes, muxer, Noise. A case is one peer that may send as many
               frames as it likes (`limits.frames_per_s` is at its largest)
    tcp        trio's socket stream, one `send_all` a message; the receiver drops what it reads
    tls        trio's SSL stream over that, TLS 1.3 with a certificate of its own that nobody checks

The two ends talk over a connection of their own: the sender names a case, the receiver answers where to send to, the sender says how much
it has sent, and the receiver answers when it has all of it, with its processor time. Counted is from the first byte sent until that answer,
after a quarter as long that warms up. Processor times are those of whole processes.
"""

from __future__ import annotations

import datetime as dt
import os
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import trio

from starling.gossip.errors import ConfigError, GossipError, PeerUnreachable
from starling.gossip.wire.schema import Lane
from starling.kernels.child import answer
from starling.kernels.schema import TRANSPORTS, LinkCase
from starling.node.config.schema import LimitsSection
from starling.node.net.libp2p import open_network

GIB = 1 << 30
LANE: Lane = "exchange"  # lane with the longest frames
MAX_MESSAGE_BYTES = 256 << 20
PATIENCE_S = 60.0  # without a byte
ECHOES = 5
_WARM_UP = 0.25
_LINE_BYTES = 1 << 12
_LIMITS = LimitsSection(frames_per_s=1e6)


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the protocol between the two ends."""

    transport: str = ""
    peer: str = ""
    """Id of the sending node."""
    address: str = ""
    """Where to send to: a port, or a multiaddr."""
    total: int = 0
    """Bytes of messages sent in this case so far."""
    cpu_s: float = 0.0
    """Of the receiver's process so far."""


class Lines:
    """Notes over a stream, one per line."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def say(self, note: Note) -> None:
        """Send a note."""
        await self._stream.send_all(msgspec.json.encode(note) + b"\n")

    async def hear(self) -> Note | None:
        """Return the next; None: the other end is gone, or talks nonsense."""
        while b"\n" not in self._buffer:
            data = await self._stream.receive_some(_LINE_BYTES)
            if not data or len(self._buffer) > _LINE_BYTES:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            return msgspec.json.decode(line, type=Note)
        except msgspec.MsgspecError:
            return None


@dataclass(slots=True)
class Count:
    """Number of bytes received, and a way to wait for more."""

    total: int = 0
    _more: trio.Event = field(default_factory=trio.Event)

    def add(self, amount: int) -> None:
        """Add `amount` to the total."""
        self.total += amount
        self._more.set()

    async def reaches(self, total: int) -> bool:
        """Wait for so many. -> whether they came, each within PATIENCE_S of the one before"""
        while self.total < total:
            self._more = trio.Event()
            with trio.move_on_after(PATIENCE_S) as patience:
                await self._more.wait()
            if patience.cancelled_caught:
                return False
        return True


# --- the receiving end ----------------------------------------------------------------------------------------


async def receive(host: str, port: int) -> None:
    """Serve one sender after another until standard input closes; print the port. Raises ConfigError: the address is unusable."""
    try:
        (listener, *_) = await trio.open_tcp_listeners(port, host=host)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--listen: {host}:{port}: {getattr(error, 'strerror', None) or error}") from error
    lock = trio.Lock()

    async def serve(stream: trio.SocketStream) -> None:
        async with lock:
            try:
                await _serve(Lines(stream), stream)
            except (trio.BrokenResourceError, OSError):
                return

    print(listener.socket.getsockname()[1], flush=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        await trio.to_thread.run_sync(sys.stdin.buffer.read, abandon_on_cancel=True)  # type: ignore[call-arg]
        nursery.cancel_scope.cancel()


async def _serve(lines: Lines, stream: trio.SocketStream) -> None:
    for _ in range(ECHOES):
        if await lines.hear() is None:
            return
        await lines.say(Note())
    case = await lines.hear()
    if case is None or case.transport not in TRANSPORTS:
        return
    host, count = stream.socket.getsockname()[0], Count()
    opened = _nodes(host, case.peer, count) if case.transport == "starling" else _sockets(host, case.transport, count)
    async with opened as address:
        await lines.say(Note(address=address))
        while (sent := await lines.hear()) is not None and await count.reaches(sent.total):
            await lines.say(Note(total=count.total, cpu_s=time.process_time()))


@asynccontextmanager
async def _nodes(host: str, peer: str, count: Count) -> AsyncIterator[str]:
    listen = f"/ip{6 if ':' in host else 4}/{host}/tcp/0"
    async with open_network(os.urandom(32), [listen], [], _LIMITS, _Silence()) as network, trio.open_nursery() as nursery:
        network.learn(peer, [])  # the peer is a member, as in a swarm

        async def read() -> None:
            async for inbound in network.inbound(LANE):
                count.add(len(inbound.frame))

        nursery.start_soon(read)
        yield network.addresses[0]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _sockets(host: str, transport: str, count: Count) -> AsyncIterator[str]:
    context = _certified() if transport == "tls" else None
    (listener, *_) = await trio.open_tcp_listeners(0, host=host)

    async def serve(raw: trio.abc.Stream) -> None:
        stream = raw if context is None else trio.SSLStream(raw, context, server_side=True)
        try:
            while data := await stream.receive_some():
                count.add(len(data))
        except (trio.BrokenResourceError, ssl.SSLError):
            return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield str(listener.socket.getsockname()[1])
        nursery.cancel_scope.cancel()


def _certified() -> ssl.SSLContext:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, day = ec.generate_private_key(ec.SECP256R1()), dt.timedelta(days=1)
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "starling bench link")])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - day).not_valid_after(now + day)
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "both.pem"
        path.write_bytes(secret + builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        context.load_cert_chain(path)
    return context


class _Silence:
    """A node's reporter that drops everything."""

    def event(self, *_words: object, **_fields: object) -> None:
        """Drop the event."""

    def fault(self, *_words: object, **_fields: object) -> None:
        """Drop the fault."""


# --- the sending end ------------------------------------------------------------------------------------------


async def send(host: str, port: int, transport: str, message_bytes: int, seconds: float, rate_mbit: float) -> LinkCase:
    """Measure one case. Raises ConfigError: nobody answers; GossipError: the connection broke, or messages were lost."""
    where = f"{host}:{port}"
    try:
        stream = await trio.open_tcp_stream(host, port)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--connect: {where}: nobody answers; start `starling bench link --listen {where}` there") from error
    lines = Lines(stream)
    try:
        rtt_s = median([await _echo(lines) for _ in range(ECHOES)])
        async with _ways[transport](lines, host) as put:
            message, total = os.urandom(message_bytes), 0
            for share in (_WARM_UP, 1.0):
                before, receiver_s = total, await _confirmed(lines, total)
                began, cpu_s = time.perf_counter(), time.process_time()
                while time.perf_counter() - began < share * seconds:
                    await put(message)
                    total += message_bytes
                after = await _confirmed(lines, total)
                took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    except (trio.BrokenResourceError, PeerUnreachable, ssl.SSLError, OSError) as error:
        raise GossipError(f"{transport}, {message_bytes} bytes: the connection to {where} broke: {error}") from error
    sent = total - before
    return LinkCase(
        message_bytes=message_bytes,
        rtt_ms=round(1e3 * rtt_s),
        rate_mbit=rate_mbit,
        transport=transport,
        mb_s=sent / took_s / 1e6,
        tx_cpu_s_per_gib=cpu_s * GIB / sent,
        rx_cpu_s_per_gib=(after - receiver_s) * GIB / sent,
    )


async def _echo(lines: Lines) -> float:
    began = time.perf_counter()
    await lines.say(Note())
    if await lines.hear() is None:
        raise ConfigError("--connect: another program answers there; start `starling bench link --listen HOST:PORT`")
    return time.perf_counter() - began


async def _confirmed(lines: Lines, total: int) -> float:
    """Wait until all arrived. -> processor time of the receiver"""
    await lines.say(Note(total=total))
    note = await lines.hear()
    if note is None:
        raise GossipError(f"the receiver did not get {total} bytes that were sent")
    return note.cpu_s


async def _begin(lines: Lines, transport: str, peer: str = "") -> str:
    await lines.say(Note(transport=transport, peer=peer))
    note = await lines.hear()
    if note is None:
        raise GossipError(f"{transport}: the receiver does not serve it")
    return note.address


Put = Callable[[bytes], Awaitable[None]]


@asynccontextmanager
async def _by_node(lines: Lines, _host: str) -> AsyncIterator[Put]:
    async with open_network(os.urandom(32), [], [], _LIMITS, _Silence()) as network:
        peer = await network.dial(await _begin(lines, "starling", network.peer_id))

        async def put(message: bytes) -> None:
            await network.send(peer, LANE, message)

        yield put


@asynccontextmanager
async def _by_tcp(lines: Lines, host: str) -> AsyncIterator[Put]:
    async with await trio.open_tcp_stream(host, int(await _begin(lines, "tcp"))) as stream:
        yield stream.send_all


@asynccontextmanager
async def _by_tls(lines: Lines, host: str) -> AsyncIterator[Put]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    raw = await trio.open_tcp_stream(host, int(await _begin(lines, "tls")))
    async with raw:
        stream = trio.SSLStream(raw, context, https_compatible=True)
        await stream.do_handshake()
        yield stream.send_all


_ways: dict[str, Any] = {"starling": _by_node, "tcp": _by_tcp, "tls": _by_tls}


def main(arguments: list[str]) -> int:
    """Run either end, as the module's docstring says; return the exit code."""
    what, host, port, *rest = arguments
    if what == "receive":
        try:
            trio.run(receive, host, int(port))
        except ConfigError as error:
            print(error, file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            return 130
        return 0
    transport, message_bytes, seconds, rate_mbit = rest
    return answer(lambda: trio.run(send, host, int(port), transport, int(message_bytes), float(seconds), float(rate_mbit)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
