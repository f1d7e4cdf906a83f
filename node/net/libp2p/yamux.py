"""Yamux as a state machine without I/O: bytes in, events out.

py-libp2p's own muxer does not enforce the receive window, polls every 10 ms for credit and gives up on a reader that pauses five
seconds. Here data beyond the window end the connection, credit is an event, and there is no clock.

    frame   version 0 | type | flags | stream | length      (12 bytes, big-endian), then `length` bytes if type is data
    data    consumes the receiver's credit: 256 KiB at first, more by window updates; this end's double to WINDOW while data come
    SYN     opens (dialler odd ids, listener even), ACK confirms; both may carry more credit
    FIN     no more from this side; RST: gone in both directions
    ping    SYN asks, ACK answers;  go away: the session ends

Limits against hostile peers: open streams, openings per second, small frames per second, answers queued for a peer that does not
read. Body bytes are handed on as they come: an announced length allocates nothing.
Source: hashicorp/yamux spec.md, with the libp2p note on initial windows.
"""

import struct
from dataclasses import dataclass, field

from starling.gossip.limits import TokenBucket
from starling.node.net.libp2p import yamux_events
from starling.node.net.libp2p.outgoing import Outgoing
from starling.node.net.libp2p.stream_state import INITIAL_WINDOW, StreamState
from starling.node.net.libp2p.yamux_events import Event, Violation

PROTOCOL_ID = "/yamux/1.0.0"
WINDOW = 16 << 20  # window of a stream: 100 ms at 1 Gbit/s and a third more
STRANGE_WINDOW = 1 << 20  # window of a session with an unknown peer
MAX_WINDOWS = 2 * WINDOW  # windows of all streams of a session together
LEAST_UPDATE = INITIAL_WINDOW // 2  # bytes per window update, as peers accept few small frames a second
MAX_BODY_BYTES = (64 << 10) - 17 - 12  # header and body fill one Noise record exactly
MAX_INBOUND_STREAMS = 16
MAX_OUTGOING_BYTES = 1 << 20  # senders of data stop far below this, so only unread answers reach it
OPENINGS_PER_S = 20.0
SMALL_BYTES = 1 << 10
SHARED_BYTES = 16 << 10  # a shorter piece is copied, so that it does not keep a whole record in memory
SMALL_FRAMES_PER_S = 1000.0  # frames accepted per second: each of 200 frames of a lane is two of them

_HEADER = struct.Struct("!BBHII")
_DATA, _UPDATE, _PING, _GO_AWAY = range(4)  # types of frames
_SYN, _ACK, _FIN, _RST = 1, 2, 4, 8  # flags


@dataclass(slots=True)
class Session:
    """State machine of one end of a yamux session; `dialler`: this end connected. The peer may have `max_inbound` streams open."""

    dialler: bool
    max_inbound: int = MAX_INBOUND_STREAMS
    most_window: int = WINDOW  # of a stream
    frames: int = 0  # received so far
    streams: dict[int, StreamState] = field(default_factory=dict)  # open streams by number
    _outgoing: Outgoing = field(default_factory=Outgoing)
    _next_id: int = 0
    _last_inbound: int = 0
    inbound: int = 0  # number of open streams that the peer opened
    _windows: int = 0  # of inbound streams
    _buffer: bytearray = field(default_factory=bytearray)
    _body: tuple[int, int] = (0, 0)  # (stream, bytes left) of the data frame being received
    _body_finishes: bool = False
    _openings: TokenBucket = field(default_factory=lambda: TokenBucket(OPENINGS_PER_S, 4 * OPENINGS_PER_S))
    _small: TokenBucket = field(default_factory=lambda: TokenBucket(SMALL_FRAMES_PER_S, 4 * SMALL_FRAMES_PER_S))

    def __post_init__(self) -> None:
        self._next_id = 1 if self.dialler else 2

    @property
    def outgoing_bytes(self) -> int:
        """Return the number of bytes that wait to be sent; see `take`."""
        return self._outgoing.size

    def open(self) -> int:
        """Return a new stream's id. The peer may answer on it at once."""
        stream, self._next_id = self._next_id, self._next_id + 2
        self.streams[stream] = StreamState(inbound=False)
        self._put(_UPDATE, _SYN, stream, 0)
        return stream

    def __contains__(self, stream: int) -> bool:
        """Tell if either side may still send on a stream."""
        return stream in self.streams

    def room(self, stream: int) -> int:
        """Return how many bytes may be sent on a stream now; 0 if it is gone."""
        state = self.streams.get(stream)
        return 0 if state is None or state.we_finished else state.send_credit

    def send(self, stream: int, data: memoryview) -> int:
        """Queue the first bytes of `data`, as many as one frame and the peer's window allow -> their number.

        They are not copied, so they must not change before they are taken.
        """
        count = min(self.room(stream), MAX_BODY_BYTES, len(data))
        if 0 < len(data) - count < SMALL_BYTES < count:
            count -= SMALL_BYTES  # avoids that the remainder becomes a small frame
        if count:
            self.streams[stream].send_credit -= count
            self._put(_DATA, 0, stream, count)
            self._outgoing.add(data[:count])
        return count

    def consumed(self, stream: int, count: int) -> None:
        """Note that `count` received bytes were consumed: the peer may send as many more, and twice the window while that is allowed."""
        state = self.streams.get(stream)
        if state is None or state.they_finished:
            return
        state.consumed += count
        if state.consumed >= max(state.window // 8, LEAST_UPDATE):
            growth = 0
            if state.inbound and not state.steady:
                growth = max(0, min(state.window, self.most_window - state.window, MAX_WINDOWS - self._windows))
            state.window += growth
            self._windows += growth
            self._put(_UPDATE, 0, stream, state.consumed + growth)
            state.receive_credit += state.consumed + growth
            state.consumed = 0

    def keep_window(self, stream: int) -> None:
        """Stop growing a stream's window."""
        state = self.streams.get(stream)
        if state is not None:
            state.steady = True

    def window(self, stream: int) -> int:
        """Return the most bytes of a stream that can be received and not consumed; 0 if it is gone."""
        state = self.streams.get(stream)
        return 0 if state is None else state.window

    def finish(self, stream: int) -> None:
        """Close our direction of a stream."""
        state = self.streams.get(stream)
        if state is not None and not state.we_finished:
            state.we_finished = True
            self._put(_UPDATE, _FIN, stream, 0)
            if state.they_finished:
                self._forget(stream)

    def reset(self, stream: int) -> None:
        """Close a stream in both directions at once."""
        if stream in self.streams:
            self._put(_UPDATE, _RST, stream, 0)
            self._forget(stream)

    def take(self, limit: int) -> list[bytearray | memoryview]:
        """Return up to `limit` bytes to send, removed from the queue, in their original pieces."""
        return self._outgoing.take(limit)

    def receive(self, data: bytes | memoryview, now: float) -> list[Event]:
        """Parse received bytes, cut anywhere, at `now` seconds. Raises Violation if the session must end."""
        events: list[Event] = []
        view = memoryview(data)
        while view:
            stream, left = self._body
            if left:
                self._take_body(stream, view[:left], events)
                view = view[left:]
                continue
            missing = _HEADER.size - len(self._buffer)
            self._buffer += view[:missing]
            view = view[missing:]
            if len(self._buffer) == _HEADER.size:
                version, kind, flags, number, length = _HEADER.unpack(self._buffer)
                self._buffer.clear()
                self.frames += 1
                if version != 0 or kind > _GO_AWAY or flags > 15:
                    raise Violation("muxer_garbage")
                self._take_header(kind, flags, number, length, now, events)
        return events

    def _take_body(self, stream: int, piece: memoryview, events: list[Event]) -> None:
        left = self._body[1] - len(piece)
        self._body = (stream, left)
        if stream in self.streams:
            events.append(yamux_events.Received(stream, piece if len(piece) >= SHARED_BYTES else bytes(piece)))
            if not left and self._body_finishes:
                self._finished(stream, events)

    def _take_header(self, kind: int, flags: int, stream: int, length: int, now: float, events: list[Event]) -> None:
        if (kind != _DATA or length < SMALL_BYTES) and not self._small.take(1, now):
            raise Violation("muxer_small_frames")
        if kind == _GO_AWAY:
            events.append(yamux_events.Ended())
        elif kind == _PING:
            if flags & _SYN:
                self._answer(_PING, _ACK, 0, length)
        else:
            if flags & _SYN:
                self._opened(stream, now, events)
            self._on_stream(kind, flags, stream, length, events)

    def _opened(self, stream: int, now: float, events: list[Event]) -> None:
        theirs = stream % 2 == (0 if self.dialler else 1)
        if not theirs or stream <= self._last_inbound:
            raise Violation("muxer_stream_id")
        if not self._openings.take(1, now):
            raise Violation("muxer_openings")
        self._last_inbound = stream
        if self.inbound >= self.max_inbound:
            self._answer(_UPDATE, _RST, stream, 0)
            return
        self.inbound += 1
        self.streams[stream] = StreamState(inbound=True)
        self._windows += INITIAL_WINDOW
        self._answer(_UPDATE, _ACK, stream, 0)
        events.append(yamux_events.Opened(stream))

    def _on_stream(self, kind: int, flags: int, stream: int, length: int, events: list[Event]) -> None:
        state = self.streams.get(stream)
        if kind == _DATA:
            if length > (WINDOW if state is None else state.receive_credit):
                raise Violation("muxer_window_overrun")
            self._body = (stream, length)
        if state is None:
            return  # we reset this stream: data in flight is skipped
        if kind == _DATA:
            if state.they_finished and length:
                raise Violation("muxer_data_after_end")
            state.receive_credit -= length
        elif length:
            if state.send_credit + length > 1 << 32:
                raise Violation("muxer_window_overflow")
            state.send_credit += length
            events.append(yamux_events.Credited(stream))
        if flags & _RST:
            self._forget(stream)
            events.append(yamux_events.Gone(stream))
        elif flags & _FIN:
            self._body_finishes = kind == _DATA and length > 0
            if not self._body_finishes:
                self._finished(stream, events)
        else:
            self._body_finishes = False

    def _finished(self, stream: int, events: list[Event]) -> None:
        state = self.streams[stream]
        if not state.they_finished:
            state.they_finished = True
            events.append(yamux_events.Finished(stream))
            if state.we_finished:
                self._forget(stream)

    def _forget(self, stream: int) -> None:
        state = self.streams.pop(stream)
        self.inbound -= state.inbound
        self._windows -= state.window if state.inbound else 0

    def _answer(self, kind: int, flags: int, stream: int, length: int) -> None:
        if self.outgoing_bytes > MAX_OUTGOING_BYTES:
            raise Violation("muxer_not_reading")
        self._put(kind, flags, stream, length)

    def _put(self, kind: int, flags: int, stream: int, length: int) -> None:
        self._outgoing.add_header(_HEADER.pack(0, kind, flags, stream, length))
