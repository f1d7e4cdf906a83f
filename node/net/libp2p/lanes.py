"""Frames on streams: a lane is a one-way stream of frames, each behind its length in 4 bytes, big-endian.

A frame is assembled as its bytes arrive, so an announced length takes no memory. Unfinished frames of all peers share one bound; when
it is reached, the stream that holds most is reset. Those of unknown peers share a smaller bound.

Frames are not dropped here: while the inbox of a peer is full, or a long frame comes from a peer that is not known yet, its stream is not
read. Then its whole window counts, as the peer can fill it.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import cast

import trio

from starling.gossip.wire.schema import MAX_FRAME_BYTES, Lane
from starling.node import versions
from starling.node.net.libp2p.connection import Connection, ConnectionInfo, Stream, StreamBroken
from starling.node.net.libp2p.growing import Growing
from starling.node.net.libp2p.noise import Conversation, HandshakeFailed, negotiate
from starling.node.versions import Range

TELL_VERSIONS = "/starling/versions/1"  # a stream on which both ends list their versions, if a lane has no common one
MAX_TOLD_BYTES = 512
HEADER_BYTES = 4
NEGOTIATION_S = 10.0
STALL_S = 30.0
MAX_UNFINISHED_BYTES = 2 * max(MAX_FRAME_BYTES.values())
LEAST_UNFINISHED_BYTES = 64 << 20  # of swarms with short frames: a few windows
MAX_STRANGE_BYTES = 8 << 20
MAX_STRANGE_FRAME_BYTES = MAX_STRANGE_BYTES // 4  # a longer one waits until its peer is known
FIRST_BYTES = 32 << 10  # of a frame, copied behind its length: a few bytes alone are a frame of the muxer too
MAX_RELAYED_MANIFEST_BYTES = 66 << 10  # a ManifestReply, the longest
MAX_RELAYED_FRAME_BYTES = 2 << 20
LEAST_EXCHANGE_BYTES = 16 << 20  # of a circuit; with less it carries control messages alone
FRAMES_AT_ONCE = 64  # delivered before other tasks run


class FrameTooLong(Exception):
    """The peer announced more than the lane allows."""


@dataclass(slots=True, eq=False)
class _Assembly:
    stream: Stream
    known: Callable[[], bool]
    strange: bool = False
    frame: Growing = field(default_factory=lambda: Growing(HEADER_BYTES))  # or its header
    paused: int = 0  # bytes that may arrive while the stream is not read

    @property
    def held(self) -> int:
        return self.frame.filled + self.paused


@dataclass(slots=True)
class PartialFrames:
    """The memory of all incomplete inbound frames; beyond a limit the stream that holds most is reset."""

    limit: int = MAX_UNFINISHED_BYTES  # most bytes
    strange_limit: int = MAX_STRANGE_BYTES  # most bytes of unknown peers
    held: int = 0
    strange: int = 0  # bytes of `held` that belong to unknown peers
    _assemblies: list[_Assembly] = field(default_factory=list)

    def begin(self, stream: Stream, known: Callable[[], bool]) -> _Assembly:
        """Start assembling frames of a stream; `known` says at the beginning of each whether its peer is known."""
        assembly = _Assembly(stream, known)
        self._assemblies.append(assembly)
        return assembly

    def of(self, peer: str) -> bool:
        """Tell if a frame of `peer` is among them."""
        return any(each.frame.filled and each.stream.connection.info.peer == peer for each in self._assemblies)

    def extend(self, assembly: _Assembly, data: memoryview) -> None:
        """Add bytes to a frame."""
        if not assembly.frame.filled:
            assembly.strange = not assembly.known()
        assembly.frame.add(data)
        self._count(assembly, len(data))
        self._limit()

    @contextmanager
    def paused(self, assembly: _Assembly) -> Iterator[None]:
        """While a stream is not read, count its whole window. Raises StreamBroken: that was too much, or the peer reset it."""
        assembly.paused = assembly.stream.window
        self._count(assembly, assembly.paused)
        self._limit()
        try:
            yield
        finally:
            self._resume(assembly)
        if assembly.stream.broken:
            raise StreamBroken

    def _resume(self, assembly: _Assembly) -> None:
        self._count(assembly, -assembly.paused)
        assembly.paused = 0

    def clear(self, assembly: _Assembly, wanted: int = HEADER_BYTES) -> memoryview:
        """Return the memory of a frame that is complete or given up, and expect `wanted` bytes next."""
        self._count(assembly, -assembly.frame.filled)
        frame, assembly.frame = assembly.frame, Growing(wanted)
        return frame.whole()

    def end(self, assembly: _Assembly) -> None:
        """Remove a stream: no more frames arrive on it."""
        self.clear(assembly)
        self._assemblies.remove(assembly)

    def _count(self, assembly: _Assembly, amount: int) -> None:
        self.held += amount
        self.strange += amount if assembly.strange else 0

    def _limit(self) -> None:
        while self.strange > self.strange_limit:
            self._give_up(each for each in self._assemblies if each.strange)
        while self.held > self.limit:
            self._give_up(self._assemblies)

    def _give_up(self, some: Iterable[_Assembly]) -> None:
        largest = max(some, key=lambda each: each.held)
        self._resume(largest)
        self.clear(largest)
        largest.stream.reset()


def lane_ids(spoken: Mapping[str, Range] = versions.LANES) -> dict[str, Lane]:
    """Protocol ids of all versions that are spoken, and the lane of each."""
    ranges = cast("Mapping[Lane, Range]", spoken)
    return {each: lane for lane, known in ranges.items() for each in versions.ids(lane, known)}


async def open_lane(connection: Connection, lane: Lane, spoken: Mapping[str, Range] = versions.LANES) -> Stream:
    """Return a stream for frames of a lane, in the newest version of `spoken` that the peer speaks too.

    StreamBroken if the connection is gone, HandshakeFailed if the peer does not speak the lane.
    """
    stream = connection.open()
    try:
        await negotiate(Conversation(stream.read, stream.write), versions.ids(lane, spoken[lane]), initiator=True)
    except BaseException as error:
        was_broken = stream.broken
        stream.reset()
        if was_broken and isinstance(error, HandshakeFailed):
            raise StreamBroken from None
        raise
    return stream


async def ask_versions(connection: Connection, spoken: Mapping[str, Range]) -> dict[str, Range] | None:
    """Tell the peer what we speak and hear what it does; None if it does not say. StreamBroken if the connection is closing."""
    stream = connection.open()
    conversation = Conversation(stream.read, stream.write)
    try:
        with trio.fail_after(NEGOTIATION_S):
            await negotiate(conversation, [TELL_VERSIONS], initiator=True)
            await write_frame(stream, versions.spoken(spoken))
            return await _heard(conversation)
    except (HandshakeFailed, trio.TooSlowError, StreamBroken):
        return None
    finally:
        stream.reset()


async def tell_versions(
    stream: Stream, conversation: Conversation, spoken: Mapping[str, Range]
) -> dict[str, Range] | None:
    """Return the other end of `ask_versions`: hear, then tell; the stream stays open."""
    try:
        with trio.fail_after(NEGOTIATION_S):
            told = await _heard(conversation)
            await write_frame(stream, versions.spoken(spoken))
            return told
    except (HandshakeFailed, trio.TooSlowError, StreamBroken):
        return None


async def _heard(conversation: Conversation) -> dict[str, Range] | None:
    async def exactly(n: int) -> bytes:
        read = b""
        while len(read) < n:
            read += await conversation.read(n - len(read))
        return read

    length = int.from_bytes(await exactly(HEADER_BYTES), "big")
    if length > MAX_TOLD_BYTES:
        return None
    try:
        return versions.heard(await exactly(length))
    except ValueError:
        return None


async def write_frame(stream: Stream, frame: bytes) -> None:
    """Write one frame whole, else reset the stream, on which what follows would be misread; StreamBroken as `Stream.write`."""
    view = memoryview(frame)
    try:
        await stream.write(b"".join((len(frame).to_bytes(HEADER_BYTES, "big"), view[:FIRST_BYTES])))
        await stream.write(view[FIRST_BYTES:])
    except BaseException:
        stream.reset()
        raise


async def accept(stream: Stream, protocols: Iterable[str]) -> tuple[str, Conversation] | None:
    """Negotiate the protocol of a stream that the peer opened -> it, and what was read; None: none of these."""
    conversation = Conversation(stream.read, stream.write)
    try:
        with trio.fail_after(NEGOTIATION_S):
            protocol = await negotiate(conversation, list(protocols), initiator=False)
    except (HandshakeFailed, trio.TooSlowError):
        return None
    return protocol, conversation


def may_carry(info: ConnectionInfo, lane: Lane, size: int) -> bool:
    """Tell if a frame may use this connection: relays carry control messages, small exchanges if they allow the bytes, and the manifest, so
    that a node can join through one.
    """
    if not info.relay or lane == "control":
        return True
    if lane == "state" and size <= MAX_RELAYED_MANIFEST_BYTES:
        return True
    return takes_exchanges(info) and size <= MAX_RELAYED_FRAME_BYTES


def takes_exchanges(info: ConnectionInfo) -> bool:
    """Tell if a connection may be used for exchanges: a direct one, or one through a relay that allows enough bytes."""
    return not info.relay or info.relay_bytes == 0 or info.relay_bytes >= LEAST_EXCHANGE_BYTES


async def read_frames(
    stream: Stream, lane: Lane, received: bytes, unfinished: PartialFrames, deliver: Callable[[memoryview], bool | None], *,
    room: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint, known: trio.Event | None = None,
    longest: Mapping[Lane, int] = MAX_FRAME_BYTES,
) -> None:  # fmt: skip
    """Deliver complete frames until the stream ends, breaks, or stalls in the middle of a frame.

    `received` are bytes that came with the negotiation. `deliver` takes ownership of a frame, or gives False and gets it again after
    `room`. `known` is set when the peer is (None: it is); until then its frames share a small bound, and long ones wait for STALL_S.
    Raises FrameTooLong: beyond the lane's bytes in `longest`, which is read for every frame.
    """
    assembly = unfinished.begin(stream, (lambda: True) if known is None else known.is_set)
    delivered, in_header = 0, True
    try:
        data = memoryview(received)
        while True:
            while data:
                missing = assembly.frame.missing
                unfinished.extend(assembly, data[:missing])
                data = data[missing:]
                if stream.broken:
                    return  # reset, as it had most of all bytes
                if in_header and not assembly.frame.missing:
                    wanted = int.from_bytes(assembly.frame.whole(), "big")
                    if wanted > longest[lane]:
                        raise FrameTooLong
                    unfinished.clear(assembly, wanted)
                    in_header = False
                    if wanted > MAX_STRANGE_FRAME_BYTES and known is not None and not known.is_set():
                        with unfinished.paused(assembly), trio.move_on_after(STALL_S):
                            await known.wait()
                        if not known.is_set():
                            stream.reset()
                            return
                if not assembly.frame.missing:
                    frame, in_header = unfinished.clear(assembly), True
                    while deliver(frame) is False:
                        with unfinished.paused(assembly):
                            await room()
                    delivered += 1
                    if delivered % FRAMES_AT_ONCE == 0:
                        await trio.lowlevel.checkpoint()
            if stream.waiting:
                data = memoryview(await stream.read())
                continue
            inside = not in_header or assembly.frame.filled
            with trio.move_on_after(STALL_S if inside else inf) as patience:
                data = memoryview(await stream.read())
            if patience.cancelled_caught or not data:
                return
    except StreamBroken:
        return
    finally:
        unfinished.end(assembly)
