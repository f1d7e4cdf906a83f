"""One connection to one peer: a reading and a writing task around the yamux session, and streams for the rest of the node.

Only the writing task touches the socket, so a cancelled `Stream.write` breaks its own stream only. Streams
queue one piece at a time while the queue is short: a long frame on one lane delays another lane by a few pieces, that
is 0.2 MB or, under a cap on what is sent, half a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from starling.node.net.libp2p import yamux
from starling.node.net.libp2p.noise import MAX_PLAIN_BYTES, Channel, ChannelBroken
from starling.node.net.limits import Pacer

QUEUE_BYTES = 2 * MAX_PLAIN_BYTES
SLICE_BYTES = 16 << 10
"""Bytes parsed at a time: full of the smallest frames they take milliseconds, for which other tasks wait."""
FINE_BYTES = 1 << 10
"""The same for a peer that sends such frames."""
MANY_EVENTS = 64
WRITE_STALL_S = 120.0  # for one piece: slower than two kilobytes a second is gone


class StreamBroken(Exception):
    """The stream was reset or its connection is gone."""


@dataclass(slots=True, eq=False)
class ConnectionInfo:
    """Facts of a connection for the connection limits; equal only to itself.

    Args:
        peer: the remote peer's id.
        block: the address block it comes from, see `addresses.block`.
        inbound: the peer dialled.
        since: when it was made.
        useful_at: when a whole frame last arrived on it.
        origin: the public prefix it comes from, see `starling.node.net.limits.origin_of`.
    """

    peer: str
    block: str
    inbound: bool
    since: float
    useful_at: float
    origin: str = ""


class Stream:
    """A byte stream to the peer. Made by `Connection.open` or handed to its `accept`."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.broken = False
        self._chunks: deque[bytes] = deque()
        self._finished = False
        self._changed = trio.lowlevel.ParkingLot()

    async def read(self) -> bytes:
        """Received bytes, at least one; b"" at the end.

        Raises:
            StreamBroken: reset, or the connection is gone.
        """
        while not self._chunks:
            if self.broken:
                raise StreamBroken
            if self._finished:
                return b""
            await self._changed.park()
        chunk = self._chunks.popleft()
        self.connection.consumed(self.number, len(chunk))
        return chunk

    async def write(self, data: bytes) -> None:
        """Queue all of `data`, waiting for the peer's credit and for the queue to shorten.

        Raises:
            StreamBroken: reset, or the connection is gone.
        """
        view = memoryview(data)
        while view:
            while not self.connection.may_queue(self.number):
                if self.broken:
                    raise StreamBroken
                await self._changed.park()
            view = view[self.connection.queue(self.number, view) :]

    def finish(self) -> None:
        """Send no more after the queued bytes."""
        self.connection.finish(self.number)

    def reset(self) -> None:
        """Drop the stream in both directions. Harmless if it is gone."""
        self.connection.reset(self.number)

    def arrived(self, data: bytes) -> None:
        """Bytes from the peer; for the connection."""
        self._chunks.append(data)
        self._changed.unpark_all()

    def ended(self, *, broken: bool) -> None:
        """Nothing more comes; for the connection."""
        self._finished = True
        self.broken = self.broken or broken
        if broken:
            self._chunks.clear()
        self._changed.unpark_all()

    def wake(self) -> None:
        """There may be room to write; for the connection."""
        self._changed.unpark_all()


class Connection:
    """Streams over one authenticated channel, while `run` runs.

    Args:
        info: facts for the connection limits.
        socket: closed when the connection ends.
        channel: encrypts.
        received: bytes that came with the handshake.
        up: paces what is sent.
        down: paces what is received.
    """

    def __init__(
        self, info: ConnectionInfo, socket: trio.SocketStream, channel: Channel, received: bytes, up: Pacer, down: Pacer
    ) -> None:
        self.info = info
        self.violation: str | None = None
        """The violation by which the peer ended the connection, if any."""
        self.closing = False
        self.over = trio.Event()
        self._socket, self._channel, self._received = socket, channel, received
        self._up, self._down = up, down
        self._queue_bytes = min(QUEUE_BYTES, 2 * up.piece_bytes)
        self._session = yamux.Session(dialler=not info.inbound)
        self._streams: dict[int, Stream] = {}
        self._scope = trio.CancelScope()
        self._writing = False
        self._queued = trio.lowlevel.ParkingLot()
        self._drained = trio.lowlevel.ParkingLot()

    async def run(self, accept: Callable[[Stream], Awaitable[None]]) -> None:
        """Serve until either end closes, the peer misbehaves or this is cancelled. Then every stream is broken.

        Args:
            accept: called in a task of its own for each stream that the peer opens; must not raise.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, nursery.cancel_scope)
                    await self._read(nursery, accept)
                    nursery.cancel_scope.cancel()
        finally:
            self.closing = True
            for stream in self._streams.values():
                stream.ended(broken=True)
            self._streams.clear()
            self._drained.unpark_all()
            self.over.set()
            await trio.aclose_forcefully(self._socket)

    async def abandon(self) -> None:
        """Close the socket of a connection that will not be run."""
        self.closing = True
        await trio.aclose_forcefully(self._socket)

    def close(self) -> None:
        """End it now."""
        self.closing = True
        self._scope.cancel()

    async def drained(self) -> None:
        """Wait until all that is queued was handed to the operating system, or the connection ended."""
        while (self._writing or self._session.outgoing) and not self.over.is_set():
            await self._drained.park()

    def open(self) -> Stream:
        """A new stream.

        Raises:
            StreamBroken: the connection is closing.
        """
        if self.closing:
            raise StreamBroken
        number = self._session.open()
        stream = self._streams[number] = Stream(self, number)
        self._queued.unpark_all()
        return stream

    def may_queue(self, number: int) -> bool:
        """Whether `queue` would take something now."""
        return (
            number in self._streams
            and self._session.room(number) > 0
            and len(self._session.outgoing) < self._queue_bytes
        )

    def queue(self, number: int, data: memoryview) -> int:
        """Take some of `data` to be sent; how many bytes."""
        count = self._session.send(number, data[: self._queue_bytes])
        self._queued.unpark_all()
        return count

    def consumed(self, number: int, count: int) -> None:
        """Received bytes are out of the way."""
        self._session.consumed(number, count)
        self._queued.unpark_all()

    def finish(self, number: int) -> None:
        """Send no more on a stream."""
        self._session.finish(number)
        self._forget_if_closed(number)
        self._queued.unpark_all()

    def reset(self, number: int) -> None:
        """Drop a stream."""
        self._session.reset(number)
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.ended(broken=True)
        self._queued.unpark_all()

    async def _read(self, nursery: trio.Nursery, accept: Callable[[Stream], Awaitable[None]]) -> None:
        data, size = self._received, SLICE_BYTES
        try:
            while True:
                start = 0
                while start < len(data):
                    if start:
                        await trio.lowlevel.checkpoint()
                    events = self._session.receive(data[start : start + size], trio.current_time())
                    start, size = start + size, SLICE_BYTES if len(events) <= MANY_EVENTS else FINE_BYTES
                    for event in events:
                        if isinstance(event, yamux.Ended):
                            return
                        if isinstance(event, yamux.Opened):
                            stream = self._streams[event.stream] = Stream(self, event.stream)
                            nursery.start_soon(accept, stream)
                        else:
                            self._dispatch(event)
                self._queued.unpark_all()
                data = await self._channel.read(self._down.piece_bytes)
                if not data:
                    return
                await self._down.passed(len(data))
        except yamux.Violation as violation:
            self.violation = violation.reason
        except ChannelBroken:
            return

    def _dispatch(self, event: yamux.Received | yamux.Finished | yamux.Gone | yamux.Credited) -> None:
        stream = self._streams.get(event.stream)
        if stream is None:
            return
        match event:
            case yamux.Received(data=data):
                stream.arrived(data)
            case yamux.Finished():
                stream.ended(broken=False)
                self._forget_if_closed(event.stream)
            case yamux.Gone():
                stream.ended(broken=True)
                del self._streams[event.stream]
            case yamux.Credited():
                stream.wake()

    def _forget_if_closed(self, number: int) -> None:
        if number not in self._session:
            self._streams.pop(number, None)

    async def _write(self, scope: trio.CancelScope) -> None:
        while True:
            while not self._session.outgoing:
                await self._queued.park()
            data, self._writing = self._session.take(self._up.piece_bytes), True
            await self._up.passed(len(data))
            try:
                with trio.fail_after(WRITE_STALL_S):
                    await self._channel.write(data)
            except (ChannelBroken, trio.TooSlowError):
                scope.cancel()
                return
            self._writing = False
            if not self._session.outgoing:
                self._drained.unpark_all()
            for stream in list(self._streams.values()):
                stream.wake()
