"""One connection to one peer: a reading and a writing task around the yamux session.

Streams queue one piece at a time, in turn, while the queue is short, and what is a short queue goes by how fast the link takes it: a long
frame on one lane delays another by about twice WRITE_S, or, under a cap on sending, half a second.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf

import trio

from starling.node.net.libp2p import sockets, yamux, yamux_events
from starling.node.net.libp2p.noise import MAX_PLAIN_BYTES, Channel, ChannelBroken
from starling.node.net.libp2p.streams import Stream, StreamBroken
from starling.node.net.limits import Pacer

QUEUE_BYTES = 8 << 10  # at first
LEAST_QUEUE_BYTES, MOST_QUEUE_BYTES = 2 << 10, 8 * MAX_PLAIN_BYTES
WRITE_S = 0.02
MEASURED_S = 0.02  # seconds of sending without a pause, after which the rate of the link is estimated
SLOW_QUEUE_BYTES = 64 << 10  # send queue of a slow link: the system buffers up to 64 kB more than its limit
MANY_FRAMES = 64  # small frames in a piece, from which FINE_BYTES are parsed at a time instead of a record
FINE_BYTES = 1 << 10
WRITE_STALL_S = 120.0  # seconds for one piece: a link below two kilobytes a second counts as broken


@dataclass(slots=True, eq=False)
class ConnectionInfo:
    """Facts of a connection for the connection limits; equal only to itself."""

    peer: str
    block: str  # address block of the peer, see `addresses.block`
    inbound: bool  # the peer dialled
    since: float  # time of the handshake
    useful_at: float  # time of the last complete frame
    origin: str = ""  # public prefix of the peer's address, see `limits.origin_of`
    local: str = ""  # local address of the connection
    host: str = ""  # the peer's address
    local_port: int = 0
    port: int = 0
    relay: str = ""  # peer id of the relay that carries it; "": none
    relay_bytes: int = 0  # bytes that the relay carries; 0: no limit
    punched: bool = False  # whether both ends dialled at once (hole punching)

    @property
    def prefix(self) -> str:
        """Return the network by which the peer's share is counted: its public prefix, or its address block if it has none."""
        return self.origin or self.block


class Connection:
    """Streams over one authenticated channel, while `run` runs; the socket is closed when it ends.

    `received` are bytes that came with the handshake; `up` and `down` pace sending and receiving.
    """

    def __init__(
        self, info: ConnectionInfo, socket: trio.abc.AsyncResource, channel: Channel, received: bytes, up: Pacer, down: Pacer
    ) -> None:
        self.info = info
        self.violation: str | None = None  # violation by which the peer ended the connection, if any
        self.closing = False
        self.over = trio.Event()
        self._socket, self._channel, self._received = socket, channel, received
        self._paced = socket.socket if isinstance(socket, trio.SocketStream) else None
        self._up, self._down = up, down
        self.queue_bytes = min(QUEUE_BYTES, 2 * up.piece_bytes)
        self.session = yamux.Session(dialler=not info.inbound)
        self._streams: dict[int, Stream] = {}
        self._scope = trio.CancelScope()
        self._writing = False
        self._in_a_row = 0  # bytes written since the queue was last empty
        self._written_at = 0.0
        self._counted_bytes, self._counted_s = 0, 0.0
        self._queued = trio.lowlevel.ParkingLot()
        self._drained = trio.lowlevel.ParkingLot()
        self.turn = trio.StrictFIFOLock()  # locked by the stream that queues the next piece
        self.room = trio.lowlevel.ParkingLot()  # streams wait here while the queue is full

    async def run(self, accept: Callable[[Stream], Awaitable[None]]) -> None:
        """Serve until either end closes, the peer misbehaves or this is cancelled. Then every stream is broken.

        `accept` is called in a task of its own for each stream that the peer opens; it must not raise.
        """
        self._hold_back()
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
        """Close the connection at once."""
        self.closing = True
        self._scope.cancel()

    def queued(self) -> None:
        """Wake the writing task if there is something to send; for streams."""
        if self._queued and self.session.outgoing_bytes:
            self._queued.unpark_all()

    @property
    def streams(self) -> int:
        """Return the number of open streams."""
        return len(self._streams)

    @property
    def is_full(self) -> bool:
        """Tell if streams have to wait before they queue more."""
        return self.session.outgoing_bytes >= self.queue_bytes

    def forget_if_closed(self, number: int) -> bool:
        """Drop a stream that is closed in both directions, and wake the writing task -> whether there was one; for streams."""
        self._queued.unpark_all()
        return number not in self.session and self._streams.pop(number, None) is not None

    async def drained(self) -> None:
        """Wait until all that is queued was handed to the operating system, or the connection ended."""
        while (self._writing or self.session.outgoing_bytes) and not self.over.is_set():
            await self._drained.park()

    def open(self) -> Stream:
        """Return a new stream; StreamBroken if the connection is closing."""
        if self.closing:
            raise StreamBroken
        number = self.session.open()
        stream = self._streams[number] = Stream(self, number)
        self._queued.unpark_all()
        return stream

    async def _read(self, nursery: trio.Nursery, accept: Callable[[Stream], Awaitable[None]]) -> None:
        records, fine = [self._received] if self._received else [], False
        try:
            while True:
                for record in records:
                    view = memoryview(record)
                    while view:
                        if fine:
                            await trio.lowlevel.checkpoint()
                        size, before = FINE_BYTES if fine else len(view), self.session.frames
                        events = self.session.receive(view[:size], trio.current_time())
                        view, fine = view[size:], self.session.frames - before > MANY_FRAMES
                        if not self._handled(events, nursery, accept):
                            return
                self.queued()
                records = await self._channel.records(self._down.piece_bytes)
                if not records:
                    return
                await self._down.passed(sum(map(len, records)))
        except yamux_events.Violation as violation:
            self.violation = violation.reason
        except ChannelBroken:
            return

    def _handled(self, events: list[yamux_events.Event], nursery: trio.Nursery, accept: Callable[[Stream], Awaitable[None]]) -> bool:
        """Report the peer's action to streams -> whether the session continues."""
        for event in events:
            if isinstance(event, yamux_events.Ended):
                return False
            if isinstance(event, yamux_events.Opened):
                stream = self._streams[event.stream] = Stream(self, event.stream)
                nursery.start_soon(accept, stream)
            else:
                self._dispatch(event)
        return True

    def _dispatch(self, event: yamux_events.Event) -> None:
        stream = self._streams.get(event.stream)
        if stream is None:
            return
        match event:
            case yamux_events.Received(data=data):
                stream.arrived(data)
            case yamux_events.Finished():
                stream.ended(broken=False)
                self.forget_if_closed(event.stream)
            case yamux_events.Gone():
                stream.ended(broken=True)
                del self._streams[event.stream]
            case yamux_events.Credited():
                stream.credited()

    async def _write(self, scope: trio.CancelScope) -> None:
        try:
            with trio.CancelScope() as stall:
                while True:
                    await self._write_some(stall)
        except ChannelBroken:
            pass
        scope.cancel()

    async def _write_some(self, stall: trio.CancelScope) -> None:
        while not self.session.outgoing_bytes:
            self._in_a_row = 0
            await self._queued.park()
        if not self._in_a_row:
            self._written_at = trio.current_time()
        before = 0
        while before < self.session.outgoing_bytes < self.queue_bytes:  # as long as running tasks add data
            before = self.session.outgoing_bytes
            await trio.lowlevel.checkpoint()
        if self._paced is not None and self.queue_bytes <= SLOW_QUEUE_BYTES:
            await trio.lowlevel.wait_writable(self._paced.fileno())
        amount = min(self.session.outgoing_bytes, self.queue_bytes, self._up.piece_bytes)
        pieces, self._writing = self.session.take(amount), True
        self.room.unpark_all()
        await self._up.passed(amount)
        stall.deadline = trio.current_time() + WRITE_STALL_S
        await self._channel.write(*pieces)
        stall.deadline = inf
        self._adapt(amount, trio.current_time())
        self._writing = False
        if not self.session.outgoing_bytes:
            self._drained.unpark_all()

    def _adapt(self, amount: int, now: float) -> None:
        """Queue no more than the link takes in WRITE_S, so that a small frame does not wait long behind a large one.

        The first bytes in a row are taken by the system at once, whatever the link, and say nothing.
        """
        if self._in_a_row >= 2 * self.queue_bytes:
            self._counted_bytes += amount
            self._counted_s += now - self._written_at
        self._in_a_row += amount
        self._written_at, before = now, self.queue_bytes
        if self._counted_s >= MEASURED_S or self._counted_bytes >= 2 * MOST_QUEUE_BYTES:
            wanted = WRITE_S * self._counted_bytes / max(self._counted_s, 1e-6)
            self._counted_bytes, self._counted_s = 0, 0.0
            self.queue_bytes = int(min(max(wanted, LEAST_QUEUE_BYTES), MOST_QUEUE_BYTES))
        self.queue_bytes = min(self.queue_bytes, 2 * self._up.piece_bytes)
        if self.queue_bytes != before:
            self._hold_back()

    def _hold_back(self) -> None:
        """Limit the system's send buffer to our own queue's size: else its hundred kilobytes are the queue of a slow link."""
        if self._paced is not None:
            sockets.hold_back(self._paced, self.queue_bytes)
