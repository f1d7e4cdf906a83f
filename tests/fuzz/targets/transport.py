"""All layers from a socket to a frame: handshakes, encrypted records, the muxer, lanes, and whole connections."""

import struct
from collections.abc import Coroutine, Iterator
from functools import cache
from typing import Any

import trio
import trio.testing

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.wire import frames
from starling.gossip.wire.schema import LANES, MAX_FRAME_BYTES
from starling.node import versions
from starling.node.net.libp2p import noise, yamux
from starling.node.net.libp2p.connection import Connection, ConnectionInfo
from starling.node.net.libp2p.lanes import TELL_VERSIONS, FrameTooLong, accept, lane_ids, read_frames, tell_versions
from starling.node.net.libp2p.noise import Channel, ChannelBroken
from starling.node.net.libp2p.partial_frames import PartialFrames
from starling.node.net.libp2p.streams import Stream, StreamBroken
from starling.node.net.libp2p.yamux import Session
from starling.node.net.libp2p.yamux_events import Received, Violation
from starling.node.net.limits import Pacer
from tests.fuzz.target import Choices, Target, one_line, reason_of
from tests.fuzz.targets.wire import golden_frames
from tests.fuzz.virtual import at_once
from tests.harness.noise_ends import noise_ends
from tests.harness.texts import words

VIOLATIONS = {
    *words("muxer_garbage muxer_stream_id muxer_openings muxer_window_overrun muxer_data_after_end muxer_window_overflow muxer_not_reading")
}
CONTROL = golden_frames("control")


def immediately(work: Coroutine[Any, Any, bytes]) -> bytes:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return bytes(end.value)
    raise AssertionError("it waits")


def pieces(data: bytes, choices: Choices) -> list[bytes]:
    cut = [choices.below(600) or len(data) for _ in range(1 + choices.below(4))]
    parts, at = [], 0
    while at < len(data):
        size = max(cut[len(parts) % len(cut)], len(data) // 200)
        parts.append(data[at : at + size])
        at += size
    return parts


_noise = cache(noise_ends)  # packets of which only the counters change


class _Arrivals:
    """A socket that has these pieces, then its end."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = iter(parts)

    async def receive_some(self, _limit: int) -> bytes:
        return next(self._parts, b"")


def _records(data: bytes) -> bool:
    """Records of a peer, some of them tampered with, cut anywhere. The plain text read is a prefix of what was sealed."""
    choices = Choices(data)
    sender, reader = _noise()
    sender.noise_protocol.cipher_state_encrypt.n = reader.noise_protocol.cipher_state_decrypt.n = 0
    wire, honest, before, intact = b"", b"", b"", True
    for _ in range(choices.below(12)):
        plain = choices.piece()
        sealed = sender.encrypt(plain)
        record = len(sealed).to_bytes(2, "big") + sealed
        match choices.below(8):
            case 1:
                at = choices.below(len(record))
                record = record[:at] + bytes([record[at] ^ (1 << choices.below(8))]) + record[at + 1 :]
                intact = False
            case 2:
                record, intact = before or b"\0\0", False
            case 3:
                record, intact = choices.below(65536).to_bytes(2, "big") + sealed, False
            case 4:
                record, intact = choices.piece(), False
            case 5:
                record, intact = record[:-1], False
        honest, wire, before = honest + plain, wire + record, record
    parts = pieces(wire, choices)
    channel = Channel(_Arrivals(parts[1:]), reader, parts[0] if parts else b"")
    read = b""
    try:
        while plain := immediately(channel.read()):
            read += plain
            assert channel.buffered < noise.MAX_RECORD_BYTES + 2
    except ChannelBroken as error:
        one_line(error)
        assert not intact
        assert honest.startswith(read)
        return False
    assert honest.startswith(read)
    assert not intact or read == honest
    return intact


def _record_seeds() -> list[bytes]:
    hello = bytes([3]) + (bytes([5]) + b"hello" + bytes([0])) * 3 + bytes([1, 7, 0, 0])
    return [hello, bytes([2, 200]) + bytes(200) + bytes([0, 0, 0, 3, 1, 0, 90, 0, 2, 0])]


RECORDS = Target(_records, _record_seeds, lambda: [b"\1\5hello\4\x02\0\0", b"\2\0\0\0\2"], most_bytes=2048, reach=28)


def _muxer(data: bytes) -> bool:
    """Frames of a peer between events of ours. A twin that gets the same bytes one by one must behave the same."""
    choices = Choices(data)
    dialler = choices.flag()
    session, twin = Session(dialler), Session(dialler)
    now, ours = 0.0, []
    received: dict[int, int] = {}
    violated = False
    while choices and not violated:
        match choices.below(8):
            case 0:
                if len(ours) < 20:
                    ours.append(session.open())
                    twin.open()
            case 1:
                stream, count = _stream(choices), choices.below(1 << 15)
                body = memoryview(bytes(count))
                assert session.send(stream, body) == twin.send(stream, body) <= count
            case 2:
                stream = _stream(choices)
                count = min(received.get(stream, 0), choices.below(1 << 16))
                received[stream] = received.get(stream, 0) - count
                session.consumed(stream, count)
                twin.consumed(stream, count)
            case 3:
                stream, end = _stream(choices), choices.flag()
                for each in (session, twin):
                    (each.finish if end else each.reset)(stream)
            case 4:
                now += choices.of((0.0, 0.1, 10.0))
                assert b"".join(session.take(1 << 16)) == b"".join(twin.take(1 << 16))
            case _:
                wire = b"".join(_yamux_frame(choices) for _ in range(1 + choices.below(4)))
                got, violated = _events(session, [wire], now)
                assert (got, violated) == _events(twin, [wire[at : at + 1] for at in range(len(wire))], now), "wherever it is cut"
                for stream, body in got:
                    if isinstance(body, bytes):
                        received[stream] = received.get(stream, 0) + len(body)
                        assert received[stream] <= yamux.WINDOW, "no more than the window is held"
        inbound = sum(stream.inbound for stream in session.streams.values())
        assert inbound == session.inbound <= yamux.MAX_INBOUND_STREAMS
        assert len(session.streams) <= yamux.MAX_INBOUND_STREAMS + len(ours)
        assert session.outgoing_bytes <= yamux.MAX_OUTGOING_BYTES + len(data) * (1 << 15)
        assert session.outgoing_bytes == twin.outgoing_bytes or violated
    assert violated or b"".join(session.take(1 << 30)) == b"".join(twin.take(1 << 30))
    return not violated and bool(received)


def _events(session: Session, parts: list[bytes], now: float) -> tuple[list[tuple[int, Any]], bool]:
    """Events of a session for some bytes, consecutive data joined, and whether it ended."""
    events: list[tuple[int, Any]] = []
    try:
        for part in parts:
            for event in session.receive(part, now):
                stream = getattr(event, "stream", 0)
                body: Any = bytes(event.data) if isinstance(event, Received) else type(event)
                if events and isinstance(body, bytes) and isinstance(events[-1][1], bytes) and events[-1][0] == stream:
                    events[-1] = (stream, events[-1][1] + body)
                else:
                    events.append((stream, body))
    except Violation as violation:
        reason_of(violation, VIOLATIONS)
        return [], True
    return events, False


def _stream(choices: Choices) -> int:
    return choices.below(12)


def _yamux_frame(choices: Choices) -> bytes:
    kind, flags, stream = choices.of((0, 1, 0, 1, 2, 3, 4)), choices.of((0, 1, 2, 4, 8, 5, 3, 15, 16)), _stream(choices)
    match choices.below(5):
        case 0:
            body = choices.piece()
        case 1:
            body = bytes(choices.below(1 << 13))
        case 2:
            return struct.pack("!BBHII", choices.below(2), kind, flags, stream, choices.number(2**32 - 1))
        case 3:
            return choices.piece()
        case _:
            body = b""
    length = len(body) if kind == 0 else choices.number(2**32 - 1)
    return struct.pack("!BBHII", 0, kind, flags, stream, length) + (body if kind == 0 else b"")


def _muxer_seeds() -> list[bytes]:
    inbound = bytes([0, 5, 0, 0, 1, 1, 0, 3]) + b"abc" + bytes([5, 0, 0, 3, 1, 0, 2]) + b"de"
    return [inbound, bytes([1, 0, 5, 0, 0, 2, 1, 0, 4]) + b"data" + bytes([2, 1, 4, 0, 4, 0])]


MUXER = Target(_muxer, _muxer_seeds, most_bytes=1024, bytes_per_byte=1 << 17, reach=70)


class _Pieces:
    """A stream, channel and socket in one: it has these pieces, then its end; `pause_s` before each.

    Writes are discarded; after a reset reading fails.
    """

    def __init__(self, parts: list[bytes], pause_s: float = 0.0) -> None:
        self._parts, self._pause_s = list(parts), pause_s
        self.broken = False

    async def read(self, _limit: int = 0) -> bytes:
        await trio.sleep(self._pause_s)
        if self.broken:
            raise StreamBroken
        return self._parts.pop(0) if self._parts else b""

    async def records(self, limit: int) -> list[bytes]:
        data = await self.read(limit)
        return [data] if data else []

    @property
    def waiting(self) -> bool:
        return False

    async def write(self, *_pieces: object) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    def reset(self) -> None:
        self.broken = True


def _frames_of(wire: bytes, limit: int) -> tuple[list[bytes], bool]:
    """The whole frames in some bytes, read in the plainest way, and whether one is announced too long."""
    found, at = [], 0
    while at + 4 <= len(wire):
        length = int.from_bytes(wire[at : at + 4], "big")
        if length > limit:
            return found, True
        if at + 4 + length > len(wire):
            break
        found.append(wire[at + 4 : at + 4 + length])
        at += 4 + length
    return found, False


async def _lanes_program(data: bytes) -> bool:
    choices = Choices(data)
    unfinished = PartialFrames(limit=300)
    streams, delivered, too_long, expected = [], [], [], []
    for _ in range(1 + choices.below(3)):
        wire = b""
        for _ in range(choices.below(4)):
            body = choices.piece()
            length = len(body) if choices.below(8) else choices.number(2**32 - 1)
            wire += length.to_bytes(4, "big") + body
        streams.append(_Pieces(pieces(wire, choices)))
        expected.append(_frames_of(wire, MAX_FRAME_BYTES["control"]))
        delivered.append([])
        too_long.append(False)

    async def read(number: int) -> None:
        try:
            await read_frames(streams[number], "control", b"", unfinished, delivered[number].append)
        except FrameTooLong:
            too_long[number] = True

    async with trio.open_nursery() as nursery:
        for number in range(len(streams)):
            nursery.start_soon(read, number)
    assert unfinished.held == 0
    assert unfinished.streams == 0
    for stream, got, long, (frames_sent, announced) in zip(streams, delivered, too_long, expected, strict=True):
        assert got == frames_sent[: len(got)], "a frame arrives whole or not at all"
        assert stream.broken or (got, long) == (frames_sent, announced)
    return not any(too_long) and not any(stream.broken for stream in streams) and any(delivered)


LANES_TARGET = Target(
    lambda data: at_once(_lanes_program, data),
    lambda: [bytes([0, 2, 3]) + b"abc" + bytes([1, 2]) + b"de" + bytes([1, 1, 3, 0, 2, 0])],
    most_bytes=1024,
    reach=45,
)


async def _connection_program(data: bytes) -> bool:
    choices = Choices(data[:8])
    channel = _Pieces(pieces(data[8:], choices), pause_s=0.01)
    info = ConnectionInfo("peer", "192.0.2.7", choices.flag(), 0.0, 0.0)
    connection = Connection(info, _Pieces([]), channel, b"", Pacer(0), Pacer(0))
    unfinished, received = PartialFrames(), []

    async def serve(stream: Stream) -> None:
        opened = await accept(stream, (*lane_ids(), TELL_VERSIONS))
        if opened is None:
            stream.reset()
            return
        protocol, conversation = opened
        if protocol == TELL_VERSIONS:
            told = await tell_versions(stream, conversation, versions.LANES)
            for each, known in versions.LANES.items() if told is not None else ():
                why = versions.mismatch({each: known}, told)
                assert len(why) < 200
                assert why.isprintable()
                received.append(why)
            stream.reset()
            return
        lane, rest = lane_ids()[protocol], conversation.rest

        def deliver(frame: bytes) -> None:
            try:
                received.append(frames.decode(lane, "peer", frame))
            except RemoteProtocolError as error:
                reason_of(error, peer="peer")

        try:
            await read_frames(stream, lane, rest, unfinished, deliver)
        except FrameTooLong:
            connection.close()

    with trio.fail_after(3600.0):
        await connection.run(serve)
    assert connection.violation is None or connection.violation in VIOLATIONS
    assert connection.over.is_set()
    assert connection.streams == 0
    assert unfinished.held == 0
    return bool(received)


def _honest(lane: str, *sent: bytes, inbound: bool = True) -> bytes:
    """Return the bytes of an honest peer with frames of a lane; for "", of one that sends its versions."""
    session = Session(dialler=inbound)
    stream = session.open()
    body = multistream(versions.ids(lane, versions.LANES[lane])[0] if lane else TELL_VERSIONS) + b"".join(
        len(frame).to_bytes(4, "big") + frame for frame in sent
    )
    session.send(stream, memoryview(body))
    return b"".join(session.take(1 << 20))


def multistream(*protocols: str) -> bytes:
    """Bytes of an honest peer that negotiates protocols."""
    lines = [f"{line}\n".encode() for line in ("/multistream/1.0.0", *protocols)]
    return b"".join(bytes([len(line)]) + line for line in lines)


def _connections() -> Iterator[bytes]:
    for lane in LANES:
        sent = golden_frames(lane) if lane != "state" else [frames.encode(CHUNK_QUERY)]
        yield bytes([0, 0, 0, 1, 0, 0, 0, 0]) + _honest(lane, *sent[:3])
        yield bytes([0, 9, 0, 0, 0, 0, 0, 0]) + _honest(lane, *sent[:1], inbound=False)
    yield bytes([0, 0, 0, 1, 0, 0, 0, 0]) + _honest("", versions.spoken(versions.LANES))


CHUNK_QUERY = frames.schema.ChunkQuery(1, 2)
CONNECTION = Target(lambda data: at_once(_connection_program, data), _connections, most_bytes=1500, spare_bytes=2 << 20, reach=130)
