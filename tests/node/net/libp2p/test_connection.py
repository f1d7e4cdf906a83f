"""Streams and lanes over one connection, in virtual time: a slow end breaks nothing, and nothing leaks."""

from contextlib import asynccontextmanager, suppress
from functools import partial
from math import inf
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from starling.gossip.wire.schema import MAX_FRAME_BYTES
from starling.node.net.libp2p.connection import MOST_QUEUE_BYTES, Connection, ConnectionInfo
from starling.node.net.libp2p.lanes import STALL_S, FrameTooLong, accept, lane_ids, open_lane, read_frames, write_frame
from starling.node.net.libp2p.partial_frames import PartialFrames
from starling.node.net.libp2p.stream_state import INITIAL_WINDOW
from starling.node.net.libp2p.streams import StreamBroken
from starling.node.net.limits import Pacer
from tests.harness.virtual import virtual


class PlainChannel:
    def __init__(self, stream: trio.StapledStream, bytes_per_s: float):
        self.stream, self.bytes_per_s = stream, bytes_per_s

    async def records(self, limit: int) -> list[bytes]:
        data = bytes(await self.stream.receive_some(limit))
        return [data] if data else []

    async def write(self, *pieces: bytes | memoryview) -> None:
        await trio.sleep(sum(map(len, pieces)) / self.bytes_per_s)
        await self.stream.send_all(b"".join(pieces))


@asynccontextmanager
async def connected(bytes_per_s=inf):
    """Return both ends of a connection, the streams that reach the second, and a nursery."""
    sockets = trio.testing.memory_stream_pair()
    channels, ups = [PlainChannel(socket, bytes_per_s) for socket in sockets], [Pacer(0), Pacer(0)]
    one, other = (
        Connection(ConnectionInfo("p", "", inbound, 0, 0), socket, channel, b"", up, Pacer(0))
        for socket, channel, up, inbound in zip(sockets, channels, ups, (False, True), strict=True)
    )
    send, accepted = trio.open_memory_channel(100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run, send.send)
        nursery.start_soon(other.run, send.send)
        yield SimpleNamespace(one=one, other=other, accepted=accepted, channel=channels[0], up=ups[0]), nursery
        nursery.cancel_scope.cancel()


@virtual
async def test_a_write_survives_a_reader_s_pause_of_an_hour():
    """Stock py-libp2p aborts a transfer after five seconds without credit, so one pause of training would abort it."""
    async with connected() as (ends, nursery):
        stream, size = ends.one.open(), 40 << 20
        nursery.start_soon(stream.write, bytes(size))
        reader = await ends.accepted.receive()
        await trio.sleep(3600.0)
        got = 0
        while got < size:
            got += len(await reader.read())


@virtual
async def test_a_closed_connection_ends_its_streams_on_both_sides():
    async with connected() as (ends, _nursery):
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
async def test_finished_streams_leave_no_table_entries():
    """A lane is reopened after every cancelled send, for weeks, so tables must not grow."""
    async with connected() as (ends, _nursery):
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
            assert end.streams == 0
            assert not end.session.streams


async def lane_between(ends, lane="exchange"):
    opened = []
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            opened.append(await open_lane(ends.one, lane))

        nursery.start_soon(send)
        far = await ends.accepted.receive()
        protocol, conversation = await accept(far, lane_ids())
    assert (lane_ids()[protocol], conversation.rest) == (lane, b"")
    return opened[0], far


async def read_all(stream):
    with suppress(StreamBroken):
        while await stream.read():
            pass


async def probed_s(nursery, near, far):
    """Return how long a short frame takes."""
    began = trio.current_time()
    nursery.start_soon(write_frame, near, b"probe")
    assert await far.read() == (5).to_bytes(4, "big") + b"probe"
    return trio.current_time() - began


@pytest.mark.parametrize("bytes_per_s", [1e6, 2e6, 2e7])
@virtual
async def test_a_short_frame_overtakes_a_long_one_on_a_link_of_any_rate(bytes_per_s):
    """The send queue is sized by the link's rate: half a megabyte would take half a second at 1 MB/s."""
    async with connected(bytes_per_s) as (ends, nursery):
        long, _ = await lane_between(ends)
        short, far = await lane_between(ends, "control")
        nursery.start_soon(write_frame, long, bytes(64 << 20))
        await trio.sleep(1.0)
        assert await probed_s(nursery, short, far) < 0.1


@virtual
async def test_a_slow_links_buffer_does_not_make_it_look_fast():
    """Short frames fit into the system's buffers at once: a long one would then queue for seconds, with a probe behind it."""
    async with connected(inf) as (ends, nursery):
        long, sink = await lane_between(ends)
        short, far = await lane_between(ends, "control")

        nursery.start_soon(read_all, sink)
        for _ in range(300):
            await write_frame(long, bytes(12 << 10))
            await trio.sleep(0.2)
        ends.channel.bytes_per_s = 125_000
        nursery.start_soon(write_frame, long, bytes(1 << 20))
        await trio.sleep(0.5)
        assert await probed_s(nursery, short, far) < 0.1


@virtual
async def test_streams_write_in_turn():
    """A short frame waits for one piece of each long one, independent of which task wakes first."""
    async with connected(1e6) as (ends, nursery):
        for _ in range(8):
            long, sink = await lane_between(ends)
            nursery.start_soon(read_all, sink)
            nursery.start_soon(write_frame, long, bytes(8 << 20))
        short, far = await lane_between(ends, "control")
        await trio.sleep(1.0)
        piece_s = ends.one.queue_bytes / 1e6
        for _ in range(20):
            assert await probed_s(nursery, short, far) < 12 * piece_s


@virtual
async def test_a_stream_cancelled_while_writing_lets_the_next_write():
    async with connected(1e6) as (ends, nursery):
        cancelled = trio.CancelScope()

        async def write_for_a_while():
            stream, sink = await lane_between(ends)
            nursery.start_soon(read_all, sink)
            with cancelled:
                await write_frame(stream, bytes(64 << 20))

        nursery.start_soon(write_for_a_while)
        await trio.sleep(1.0)
        short, far = await lane_between(ends, "control")
        nursery.start_soon(write_frame, short, bytes(1 << 10))
        cancelled.cancel()
        with trio.fail_after(1.0):
            assert await far.read()


@virtual
async def test_a_fast_link_receives_full_batches():
    async with connected() as (ends, nursery):
        stream, far = await lane_between(ends)
        nursery.start_soon(write_frame, stream, bytes(8 << 20))
        received = 0
        while received < 8 << 20:
            received += len(await far.read())
        assert ends.one.queue_bytes == MOST_QUEUE_BYTES
        ends.up.change(80_000)
        await write_frame(stream, bytes(1 << 10))
        await trio.sleep(1.0)
        assert ends.one.queue_bytes == 20_000, "two pieces: a short frame waits for a quarter of a second"


@virtual
async def test_a_stalled_frame_is_abandoned_but_an_idle_lane_is_not():
    """Memory of a partial frame is released; an idle lane costs nothing."""
    async with connected() as (ends, nursery):
        unfinished, frames = PartialFrames(), []
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
        assert all(isinstance(frame, memoryview) for frame in frames), "handed on as assembled, without a copy"
        assert trio.current_time() - start == pytest.approx(101 * STALL_S)
        assert unfinished.held == 0


@virtual
async def test_the_peer_with_most_unfinished_bytes_is_reset_at_the_bound():
    """Slow large frames must not starve small ones of memory."""
    async with connected() as (ends, nursery):
        unfinished, frames = PartialFrames(limit=1 << 20), []
        large, far_large = await lane_between(ends)
        small, far_small = await lane_between(ends)
        nursery.start_soon(read_frames, far_small, "exchange", b"", unfinished, frames.append)
        nursery.start_soon(read_frames, far_large, "exchange", b"", unfinished, frames.append)
        assert not unfinished.of("p")
        await large.write((8 << 20).to_bytes(4, "big") + bytes(1_000_000))
        await trio.sleep(1.0)
        assert [unfinished.of(peer) for peer in ("p", "another")] == [True, False]
        await write_frame(small, bytes(200_000))
        await trio.sleep(1.0)
        assert [len(frame) for frame in frames] == [200_000]
        assert unfinished.held == 0
        assert not unfinished.of("p")
        assert large.broken
        assert not small.broken


@virtual
async def test_strangers_unfinished_frames_have_a_small_bound():
    """Strangers send only short frames and are free to create. They do not block known peers, nor known peers them."""
    async with connected() as (ends, nursery):
        unfinished, frames, streams = PartialFrames(strange_limit=400_000), [], {}
        known = {name: trio.Event() for name in ("member", "stranger", "another")}
        known["member"].set()
        for name, event in known.items():
            streams[name], far = await lane_between(ends)
            nursery.start_soon(partial(read_frames, known=event), far, "exchange", b"", unfinished, frames.append)
        await streams["member"].write((4 << 20).to_bytes(4, "big") + bytes(3 << 20))
        await streams["stranger"].write((250_000).to_bytes(4, "big") + bytes(240_000))
        await trio.sleep(1.0)
        await write_frame(streams["another"], bytes(200_000))
        await trio.sleep(1.0)
        assert [len(frame) for frame in frames] == [200_000]
        assert streams["stranger"].broken
        assert (unfinished.held, unfinished.strange) == (3 << 20, 0)
        known["another"].set()
        await write_frame(streams["another"], bytes(2 << 20))
        await streams["member"].write(bytes(1 << 20))
        await trio.sleep(1.0)
        assert [len(frame) for frame in frames[1:]] == [2 << 20, 4 << 20]
        assert (unfinished.held, unfinished.strange) == (0, 0)


@virtual
async def test_a_long_frame_of_a_stranger_waits_until_it_is_known():
    """It may be a member whose record has not arrived. Until then only its window is stored, and that counts."""
    async with connected() as (ends, nursery):
        unfinished, frames, known = PartialFrames(), [], trio.Event()
        stream, far = await lane_between(ends)
        nursery.start_soon(partial(read_frames, known=known), far, "exchange", b"", unfinished, frames.append)
        nursery.start_soon(write_frame, stream, bytes(16 << 20))
        await trio.sleep(STALL_S - 1.0)
        assert unfinished.held == unfinished.strange == INITIAL_WINDOW
        assert far.unread <= INITIAL_WINDOW
        known.set()
        await trio.sleep(1.0)
        assert [len(frame) for frame in frames] == [16 << 20]
        assert (unfinished.held, unfinished.strange) == (0, 0)


@virtual
async def test_a_long_frame_of_a_peer_that_stays_unknown_is_abandoned():
    async with connected() as (ends, nursery):
        unfinished, frames = PartialFrames(), []
        stream, far = await lane_between(ends)
        nursery.start_soon(partial(read_frames, known=trio.Event()), far, "exchange", b"", unfinished, frames.append)
        with pytest.raises(StreamBroken):
            await write_frame(stream, bytes(16 << 20))
        assert unfinished.held == 0
        assert not frames
        assert not ends.one.closing, "the connection and its other lanes live"


@virtual
async def test_frames_wait_at_their_sender_while_the_inbox_is_full():
    """A burst is not lost while the inbox is full: the sender's window closes. Credit given to the peer counts as memory in use."""
    async with connected() as (ends, nursery):
        unfinished, frames, taken = PartialFrames(), [], trio.Event()
        stream, far = await lane_between(ends)

        def deliver(frame):
            return frames.append(frame) if len(frames) < 3 or taken.is_set() else False

        nursery.start_soon(partial(read_frames, room=taken.wait), far, "exchange", b"", unfinished, deliver)

        async def send():
            for number in range(10):
                await write_frame(stream, bytes([number]) * 100_000)

        nursery.start_soon(send)
        await trio.sleep(1000 * STALL_S)
        assert len(frames) == 3
        assert unfinished.held == far.window <= 8 * INITIAL_WINDOW, "it doubles with every half of the first that is read"
        taken.set()
        await trio.sleep(1.0)
        assert [frame[0] for frame in frames] == list(range(10))
        assert unfinished.held == 0


@virtual
async def test_unread_streams_beyond_the_bound_are_reset():
    """A hostile peer could fill the memory of their windows."""
    async with connected() as (ends, nursery):
        unfinished = PartialFrames(limit=3 * INITIAL_WINDOW)
        streams = []
        for _ in range(5):
            stream, far = await lane_between(ends)
            streams.append(stream)
            read = partial(read_frames, room=trio.sleep_forever)
            nursery.start_soon(read, far, "control", b"", unfinished, lambda frame: False)
            await write_frame(stream, b"x")
        await trio.sleep(1.0)
        assert sum(not stream.broken for stream in streams) == 3
        assert unfinished.held == 3 * INITIAL_WINDOW


@pytest.mark.parametrize("lane", ["control", "exchange", "state"])
@virtual
async def test_a_length_above_the_lane_s_limit_is_refused_before_its_first_byte(lane):
    async with connected() as (ends, _):
        stream, far = await lane_between(ends, lane)
        await stream.write((MAX_FRAME_BYTES[lane] + 1).to_bytes(4, "big"))
        with pytest.raises(FrameTooLong):
            await read_frames(far, lane, b"", PartialFrames(), lambda frame: None)


@virtual
async def test_a_stream_for_another_protocol_or_for_none_is_no_lane():
    """Stock peers ask for identify and ping; some select no protocol and wait."""
    async with connected() as (ends, _nursery):
        ends.one.open()
        assert await accept(await ends.accepted.receive(), lane_ids()) is None
        stream = ends.one.open()
        await stream.write(b"\xff\xff\xff\xff\x7f")
        assert await accept(await ends.accepted.receive(), lane_ids()) is None
