"""Frames on streams: a lane is a one-way stream of frames, each behind its length in 4 bytes, big-endian.

A frame is assembled as its bytes arrive, within bounds of all peers (`partial_frames`).

Frames are not dropped here: while the inbox of a peer is full, or a long frame comes from a peer that is not known yet, its stream is not
read. Then its whole window counts, as the peer can fill it.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from math import inf
from typing import cast

import trio

from starling.gossip.wire.schema import MAX_FRAME_BYTES, Lane
from starling.node import versions
from starling.node.net.libp2p.connection import Connection, ConnectionInfo
from starling.node.net.libp2p.negotiation import Conversation, HandshakeFailed, negotiate
from starling.node.net.libp2p.partial_frames import HEADER_BYTES, MAX_STRANGE_BYTES, PartialFrames
from starling.node.net.libp2p.streams import Stream, StreamBroken
from starling.node.versions import Range

TELL_VERSIONS = "/starling/versions/1"  # protocol of a stream on which both ends list their versions, if a lane has none in common
MAX_TOLD_BYTES = 512
NEGOTIATION_S = 10.0
STALL_S = 30.0
MAX_STRANGE_FRAME_BYTES = MAX_STRANGE_BYTES // 4  # a longer frame waits until its peer is known
FIRST_BYTES = 32 << 10  # first bytes of a frame, sent together with its length: a few bytes alone would be a separate muxer frame
MAX_RELAYED_MANIFEST_BYTES = 66 << 10  # bytes of a ManifestReply, the longest control frame over a relay
MAX_RELAYED_FRAME_BYTES = 2 << 20
LEAST_EXCHANGE_BYTES = 16 << 20  # bytes of a circuit; one with less carries control messages only
FRAMES_AT_ONCE = 64  # frames delivered before other tasks run


class FrameTooLong(Exception):
    """The peer announced more than the lane allows."""


def lane_ids(spoken: Mapping[str, Range] = versions.LANES) -> dict[str, Lane]:
    """Return the protocol ids of all versions spoken, with the lane of each."""
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
    """Exchange the spoken versions with a peer; None if it does not say. StreamBroken if the connection is closing."""
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


async def tell_versions(stream: Stream, conversation: Conversation, spoken: Mapping[str, Range]) -> dict[str, Range] | None:
    """Answer `ask_versions`: read the peer's versions, then send ours; the stream stays open."""
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
    """Write one frame whole, else reset the stream, whose next bytes would be misread; StreamBroken as `Stream.write`."""
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
    stream: Stream,
    lane: Lane,
    received: bytes,
    unfinished: PartialFrames,
    deliver: Callable[[memoryview], bool | None],
    *,
    room: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
    known: trio.Event | None = None,
    longest: Mapping[Lane, int] = MAX_FRAME_BYTES,
) -> None:
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
                    return  # reset, because this stream held the most bytes
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
