"""Streams and lanes over one connection, in virtual time: nothing gives up because somebody is slow, nothing leaks."""

from __future__ import annotations

from functools import partial

import pytest
import trio
import trio.testing

from starling.gossip.wire.schema import MAX_FRAME_BYTES
from starling.node.net.libp2p.connection import Connection, ConnectionInfo, StreamBroken
from starling.node.net.libp2p.lanes import (
    STALL_S,
    FrameTooLong,
    PartialFrames,
    accept_lane,
    open_lane,
    read_frames,
    write_frame,
)
from starling.node.net.limits import Pacer
from tests.harness.virtual import virtual


class PlainChannel:
    """Bytes as they are, over a stream in memory."""

    def __init__(self, stream: trio.StapledStream):
        self.stream = stream

    async def read(self, limit: int) -> bytes:
        return bytes(await self.stream.receive_some(limit))

    async def write(self, data: bytes) -> None:
        await self.stream.send_all(data)


class Ends:
    """Both ends of a connection; `accepted` has the streams that reach the second."""

    def __init__(self, nursery: trio.Nursery):
        sockets = trio.testing.memory_stream_pair()
        self.one, self.other = (
            Connection(
                ConnectionInfo("p", "", inbound, 0.0, 0.0), socket, PlainChannel(socket), b"", Pacer(0), Pacer(0)
            )
            for socket, inbound in zip(sockets, (False, True), strict=True)
        )
        self._send, self.accepted = trio.open_memory_channel(100)
        nursery.start_soon(self.one.run, self._send.send)
        nursery.start_soon(self.other.run, self._send.send)


@virtual
async def test_a_writer_outlasts_a_reader_that_pauses_for_an_hour():
    """Stock py-libp2p kills a transfer after five seconds without credit: one pause for training would do it."""
    async with trio.open_nursery() as nursery:
        ends = Ends(nursery)
        stream, size = ends.one.open(), 40 << 20
        nursery.start_soon(stream.write, bytes(size))
        reader = await ends.accepted.receive()
        await trio.sleep(3600.0)
        got = 0
        while got < size:
            got += len(await reader.read())
        nursery.cancel_scope.cancel()


@virtual
async def test_the_end_of_a_connection_breaks_its_streams_on_both_sides():
    """Nobody waits on a dead stream."""
    async with trio.open_nursery() as nursery:
        ends = Ends(nursery)
        stream = ends.one.open()
        await stream.write(b"x")
        far = await ends.accepted.receive()
        assert await far.read() == b"x"
        ends.one.close()
        for end in (stream, far):
            with pytest.raises(StreamBroken):
                await end.read()
            with pytest.raises(StreamBroken):
                await end.write(b"x")
        await ends.other.over.wait()
        with pytest.raises(StreamBroken):
            ends.one.open()


@virtual
async def test_streams_that_are_over_leave_nothing_behind():
    """A lane is reopened after every cancelled send, for weeks: tables must not grow."""
    async with trio.open_nursery() as nursery:
        ends = Ends(nursery)
        for i in range(300):
            stream = ends.one.open()
            await stream.write(b"x")
            far = await ends.accepted.receive()
            assert await far.read() == b"x"
            if i % 2:
                stream.reset()
            else:
                stream.finish()
                assert await far.read() == b""
                far.finish()
            await trio.sleep(0.1)
        for end in (ends.one, ends.other):
            assert not end._streams
            assert not end._session._streams
        nursery.cancel_scope.cancel()


async def lane_between(ends: Ends, lane="exchange"):
    """A sending stream, and the receiving one ready for `read_frames`."""
    opened = []
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            opened.append(await open_lane(ends.one, lane))

        nursery.start_soon(send)
        far = await ends.accepted.receive()
        accepted = await accept_lane(far)
    assert accepted == (lane, b"")
    return opened[0], far


@virtual
async def test_a_frame_that_stalls_half_way_is_given_up_but_silence_between_frames_is_fine():
    """Memory for half a frame is not held for ever; an idle lane costs nothing."""
    async with trio.open_nursery() as nursery:
        ends, unfinished, frames = Ends(nursery), PartialFrames(), []
        stream, far = await lane_between(ends)

        async def send() -> None:
            await write_frame(stream, b"one")
            await trio.sleep(100 * STALL_S)
            await write_frame(stream, b"two")
            await stream.write((1000).to_bytes(4, "big") + b"half a")

        nursery.start_soon(send)
        start = trio.current_time()
        await read_frames(far, "exchange", b"", unfinished, frames.append)
        assert frames == [b"one", b"two"]
        assert all(isinstance(frame, bytearray) for frame in frames), "handed on as assembled, without a copy"
        assert trio.current_time() - start == pytest.approx(101 * STALL_S)
        assert unfinished.held == 0
        nursery.cancel_scope.cancel()


@virtual
async def test_who_holds_most_of_the_unfinished_pays_when_the_bound_is_reached():
    """Slow large frames must not starve small ones of memory."""
    async with trio.open_nursery() as nursery:
        ends, unfinished, frames = Ends(nursery), PartialFrames(limit=1 << 20), []
        large, far_large = await lane_between(ends)
        small, far_small = await lane_between(ends)
        nursery.start_soon(read_frames, far_small, "exchange", b"", unfinished, frames.append)
        nursery.start_soon(read_frames, far_large, "exchange", b"", unfinished, frames.append)
        await large.write((8 << 20).to_bytes(4, "big") + bytes(1_000_000))
        await write_frame(small, bytes(200_000))
        await trio.sleep(1.0)
        assert [len(frame) for frame in frames] == [200_000]
        assert unfinished.held == 0
        assert large.broken
        assert not small.broken
        nursery.cancel_scope.cancel()


@virtual
async def test_what_strangers_have_under_way_has_a_small_bound_of_its_own():
    """They have only small things to say, and cost nothing to make. Whoever we know is not in their way, nor are they in its."""
    async with trio.open_nursery() as nursery:
        ends, unfinished, frames, members = Ends(nursery), PartialFrames(strange_limit=1 << 20), [], {"member"}
        streams = {}
        for name in ("member", "stranger", "another"):
            streams[name], far = await lane_between(ends)
            nursery.start_soon(
                partial(
                    read_frames,
                    far,
                    "exchange",
                    b"",
                    unfinished,
                    frames.append,
                    known=lambda name=name: name in members,
                )
            )
        await streams["member"].write((4 << 20).to_bytes(4, "big") + bytes(3 << 20))
        await streams["stranger"].write((4 << 20).to_bytes(4, "big") + bytes(800_000))
        await write_frame(streams["another"], bytes(500_000))
        await trio.sleep(1.0)
        assert [len(frame) for frame in frames] == [500_000]
        assert streams["stranger"].broken
        assert (unfinished.held, unfinished.strange) == (3 << 20, 0)
        members.add("another")
        await write_frame(streams["another"], bytes(2 << 20))
        await streams["member"].write(bytes(1 << 20))
        await trio.sleep(1.0)
        assert [len(frame) for frame in frames[1:]] == [2 << 20, 4 << 20]
        assert (unfinished.held, unfinished.strange) == (0, 0)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("lane", ["control", "exchange", "state"])
def test_a_length_beyond_the_lane_is_refused_before_its_first_byte(lane):
    """Check the length prefix before memory is spent."""

    @virtual
    async def run():
        async with trio.open_nursery() as nursery:
            ends = Ends(nursery)
            stream, far = await lane_between(ends, lane)
            await stream.write((MAX_FRAME_BYTES[lane] + 1).to_bytes(4, "big"))
            with pytest.raises(FrameTooLong):
                await read_frames(far, lane, b"", PartialFrames(), lambda frame: None)
            nursery.cancel_scope.cancel()

    run()


@virtual
async def test_a_stream_for_another_protocol_or_for_none_is_no_lane():
    """Stock peers ask for identify and ping; some ask for nothing and wait."""
    async with trio.open_nursery() as nursery:
        ends = Ends(nursery)
        ends.one.open()
        assert await accept_lane(await ends.accepted.receive()) is None
        stream = ends.one.open()
        await stream.write(b"\xff\xff\xff\xff\x7f")
        assert await accept_lane(await ends.accepted.receive()) is None
        nursery.cancel_scope.cancel()
