"""The muxer's state machine: sent data arrive, and a peer that breaks the rules costs nothing."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.node.net.libp2p import yamux
from starling.node.net.libp2p.yamux import WINDOW, Session
from starling.node.net.libp2p.yamux_events import Credited, Finished, Gone, Opened, Received, Violation
from tests.strategies import examples

DATA, UPDATE, PING = 0, 1, 2
SYN, ACK, FIN, RST = 1, 2, 4, 8


def frame(kind: int, flags: int, stream: int, length: int, body: bytes = b"") -> bytes:
    return struct.pack("!BBHII", 0, kind, flags, stream, length) + body


def pair() -> tuple[Session, Session]:
    return Session(dialler=True), Session(dialler=False)


def taken(session: Session, limit: int = 1 << 30) -> bytes:
    return b"".join(session.take(limit))


def pump(one: Session, other: Session) -> tuple[list, list]:
    at_one, at_other = [], []
    while one.outgoing_bytes or other.outgoing_bytes:
        at_other += other.receive(taken(one), 0.0)
        at_one += one.receive(taken(other), 0.0)
    return at_one, at_other


def until_violation(session: Session, frames, apart_s=0.0) -> tuple[str, list]:
    """Feed frames until one is a violation; return its reason ("" if none was) and the events before it."""
    events = []
    try:
        for number, data in enumerate(frames):
            events += session.receive(data, number * apart_s)
    except Violation as violation:
        return violation.reason, events
    return "", events


@given(
    messages=st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=300)), max_size=30),
    cuts=st.lists(st.integers(1, 50), min_size=1, max_size=20),
)
@examples(50)
def test_streams_cut_anywhere_arrive_whole_and_in_order(messages, cuts):
    one, other = pair()
    streams = [one.open() for _ in range(3)]
    sent = dict.fromkeys(streams, b"")
    for index, data in messages:
        assert one.send(streams[index], memoryview(data)) == len(data)
        sent[streams[index]] += data
    got, step = dict.fromkeys(streams, b""), 0
    while one.outgoing_bytes:
        for event in other.receive(taken(one, cuts[step % len(cuts)]), 0.0):
            if isinstance(event, Received):
                got[event.stream] += event.data
        step += 1
    assert got == sent


def test_a_sender_stops_at_the_window_until_bytes_are_consumed():
    """Flow control: at most one window is in flight to a reader that does not read, and it doubles while the reader does."""
    one, other = pair()
    stream = one.open()
    pump(one, other)
    data, got, windows = memoryview(bytes(1 << 20)), 0, []
    while not windows or windows[-1] < WINDOW:
        before = got
        while one.send(stream, data):
            _, events = pump(one, other)
            got += sum(len(event.data) for event in events if isinstance(event, Received))
        windows.append(got - before)
        other.consumed(stream, got - before)
        events, _ = pump(one, other)
        assert Credited(stream) in events
        assert one.room(stream) == other.window(stream) <= WINDOW
    assert windows == [yamux.INITIAL_WINDOW << doubling for doubling in range(7)]


def test_credit_is_returned_long_before_the_window_is_used_up():
    """With an update per half window a distant sender would get half a window per round trip."""
    one, other = pair()
    stream, late = one.open(), 0
    pump(one, other)
    for _ in range(400):
        count = one.send(stream, memoryview(bytes(1 << 16)))
        pump(one, other)
        other.consumed(stream, count)
        pump(one, other)
        window = other.window(stream)
        late = max(late, window - one.room(stream)) if window == WINDOW else 0
    assert 0 < late <= WINDOW // 8


def test_the_sum_of_all_streams_windows_is_bounded_and_returned():
    """The memory a peer may use is bounded per connection, not per stream."""
    one, other = pair()
    streams = [one.open() for _ in range(4)]
    pump(one, other)

    def use(stream: int) -> None:
        for _ in range(300):
            count = one.send(stream, memoryview(bytes(1 << 17)))
            pump(one, other)
            other.consumed(stream, count)
            pump(one, other)

    for stream in streams:
        use(stream)
    windows = [other.window(stream) for stream in streams]
    assert windows[0] == WINDOW
    assert sum(windows) <= yamux.MAX_WINDOWS
    assert all(one.room(stream) <= window for stream, window in zip(streams, windows, strict=True))
    other.reset(streams[0])
    pump(one, other)
    use(streams[3])
    assert other.window(streams[3]) == WINDOW


def test_an_announced_length_beyond_the_window_ends_the_session_before_a_byte_of_it():
    """Stock py-libp2p accepts it all. Answers on own streams are not read, so a peer has only the initial window there."""
    one, other = pair()
    with pytest.raises(Violation, match="window_overrun"):
        pair()[1].receive(frame(DATA, SYN, 1, yamux.INITIAL_WINDOW + 1), 0.0)
    stream = one.open()
    pump(one, other)
    one.receive(frame(DATA, 0, stream, yamux.INITIAL_WINDOW, bytes(yamux.INITIAL_WINDOW)), 0.0)
    with pytest.raises(Violation, match="window_overrun"):
        one.receive(frame(DATA, 0, stream, 1), 0.0)


def test_a_peer_that_exceeds_the_window_is_disconnected():
    """Many frames of allowed length must not exceed the credit together."""
    _, other = pair()
    other.receive(frame(UPDATE, SYN, 1, 0), 0.0)
    piece = frame(DATA, 0, 1, 1 << 16, bytes(1 << 16))
    reason, events = until_violation(other, [piece] * 100)
    assert reason == "muxer_window_overrun"
    assert sum(len(event.data) for event in events) == yamux.INITIAL_WINDOW


def test_more_streams_than_allowed_are_reset_one_by_one():
    """The session survives, so an honest burst loses only its excess."""
    one, other = pair()
    streams = [one.open() for _ in range(yamux.MAX_INBOUND_STREAMS + 3)]
    at_one, at_other = pump(one, other)
    assert [event.stream for event in at_other if isinstance(event, Opened)] == streams[:-3]
    assert [event.stream for event in at_one if isinstance(event, Gone)] == streams[-3:]
    one.reset(streams[0])
    pump(one, other)
    replacement = one.open()
    _, at_other = pump(one, other)
    assert Opened(replacement) in at_other


def test_a_flood_of_openings_ends_the_session():
    """30,000 SYN frames cost stock py-libp2p 16 s of CPU."""
    _, other = pair()
    frames = (frame(UPDATE, SYN, stream, 0) + frame(UPDATE, RST, stream, 0) for stream in range(1, 2001, 2))
    assert until_violation(other, frames)[0] == "muxer_openings"


def test_a_peer_that_never_reads_its_answers_is_disconnected():
    """Answers are queued for it, so without a bound they would fill the memory."""
    _, other = pair()
    pings = (frame(PING, SYN, 0, nonce) for nonce in range(200_000))
    assert until_violation(other, pings, apart_s=1 / yamux.SMALL_FRAMES_PER_S)[0] == "muxer_not_reading"
    assert other.outgoing_bytes < 2 << 20


@pytest.mark.parametrize(
    "small", [frame(PING, SYN, 0, 7), frame(PING, ACK, 0, 7), frame(DATA, 0, 1, 1, b"x"), frame(UPDATE, 0, 1, 1), frame(UPDATE, 0, 99, 1)]
)
def test_the_rate_of_empty_frames_is_limited(small):
    """A record has up to 5,000 of them, 20 ms of processor time; 64 connections that send nothing else would use all of it."""
    _, other = pair()
    other.receive(frame(UPDATE, SYN, 1, 0), 0.0)
    assert until_violation(other, [small] * 3_900)[0] == ""
    for _ in range(1_000):
        other.receive(frame(DATA, 0, 1, yamux.SMALL_BYTES, bytes(yamux.SMALL_BYTES)), 0.0)
        other.consumed(1, yamux.SMALL_BYTES)
    assert until_violation(other, [small] * 200)[0] == "muxer_small_frames"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(UPDATE, SYN, 2, 0), "muxer_stream_id"),
        (frame(UPDATE, SYN, 1, 0) * 2, "muxer_stream_id"),
        (frame(UPDATE, SYN, 3, 0) + frame(UPDATE, SYN, 1, 0), "muxer_stream_id"),
        (b"\x01" + bytes(11), "muxer_garbage"),
        (frame(7, 0, 1, 0), "muxer_garbage"),
        (frame(UPDATE, 16, 1, 0), "muxer_garbage"),
        (frame(UPDATE, SYN | FIN, 1, 0) + frame(DATA, 0, 1, 1), "muxer_data_after_end"),
        (frame(UPDATE, SYN, 1, 2**32 - 1) + frame(UPDATE, 0, 1, 2**32 - 1), "muxer_window_overflow"),
    ],
)
def test_violations_of_the_specification_are_named(data, reason):
    with pytest.raises(Violation, match=reason):
        Session(dialler=False).receive(data, 0.0)


def test_a_stream_ends_in_order_after_its_last_byte():
    """FIN may come with data; each end forgets a stream only when both have finished."""
    one, other = pair()
    stream = one.open()
    one.send(stream, memoryview(b"last words"))
    one.finish(stream)
    _, events = pump(one, other)
    assert events == [Opened(stream), Received(stream, b"last words"), Finished(stream)]
    assert stream in other
    assert stream in one
    other.finish(stream)
    events, _ = pump(one, other)
    assert Finished(stream) in events
    assert stream not in one
    assert stream not in other


def test_data_of_a_reset_stream_is_skipped():
    """Data in flight at the time of our reset are not a fault of the peer."""
    one, other = pair()
    stream = one.open()
    pump(one, other)
    one.send(stream, memoryview(b"x" * 1000))
    other.reset(stream)
    after = one.open()
    one.send(after, memoryview(b"fine"))
    _, events = pump(one, other)
    assert events == [Opened(after), Received(after, b"fine")]


def test_the_first_frames_are_those_of_the_specification():
    """Golden bytes, which a stock libp2p peer must understand."""
    one, other = pair()
    stream = one.open()
    one.send(stream, memoryview(b"hi"))
    opening = taken(one)
    assert opening.hex() == "000100010000000100000000" + "000000000000000100000002" + b"hi".hex()
    other.receive(opening + frame(PING, SYN, 0, 7), 0.0)
    assert taken(other).hex() == "000100020000000100000000" + "000200020000000000000007"
    assert yamux.MAX_BODY_BYTES + 12 == 65535 - 16, "a full frame is one full Noise record"
