"""Frames between daemon and engine."""

import socket
import tracemalloc
from collections.abc import Callable

import pytest

from starling.gossip.errors import LocalProtocolError
from starling.gossip.wire import frames
from starling.gossip.wire.schema import Response
from starling.node.config.schema import Manifest
from starling.node.rpc import calls, pipe
from starling.node.status.snapshot import EngineFigures

REQUESTS = (
    calls.Open(Manifest(seed=7), "", 3, "cpu", 1, "/run/checkpoint", "peer"),
    calls.Train(4, 20),
    calls.Free(on=True, round=5),
    calls.Offer("peer", 1, 2, 3, 0.5, 4096),
    calls.Answer("peer", 1, 2, 3, 0.5, 0.25, b"\x00\xff"),
    calls.Apply("peer", 1, 2, b"payload"),
    calls.Commit("peer", 1, 2),
    calls.Revoke("peer"),
    calls.Consider("b", 9, b"state"),
    calls.Limit(3),
    calls.Stop(),
)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_a_request_survives_encoding(request_):
    frame = pipe.encode(11, request_)
    assert pipe.body_bytes(frame[: pipe.HEADER.size]) == len(frame) - pipe.HEADER.size
    assert pipe.decode_request(frame[pipe.HEADER.size :]) == (11, request_)


def test_replies_and_final_messages_survive_encoding():
    for reply in (calls.Trained(1, EngineFigures(20, 0.5), 0.1), calls.Refused("peer", "not_finite"), pipe.Failed("MemoryError: no")):
        assert pipe.decode_reply(pipe.encode(0, reply)[pipe.HEADER.size :]) == (0, reply)


def test_an_unreadable_frame_is_reported_as_a_local_bug():
    for body in (b"", b"\xc1", b"\x92\x01\x91\xa4what", pipe.encode(1, calls.Done())[pipe.HEADER.size :]):
        with pytest.raises(LocalProtocolError, match="not a request"):
            pipe.decode_request(body)
    with pytest.raises(LocalProtocolError, match="exceeds"):
        pipe.body_bytes(pipe.HEADER.pack(pipe.MAX_FRAME_BYTES + 1))


def test_the_child_reads_requests_in_order_until_the_end_of_the_stream():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = pipe.Pipe(theirs)
        assert not child.ready()
        frames = pipe.encode(1, calls.Train(0, 5)) + pipe.encode(2, calls.Stop())
        ours.sendall(frames + pipe.encode(3, calls.Stop())[:-1])
        assert child.ready()
        assert child.receive() == (1, calls.Train(0, 5))
        assert child.receive() == (2, calls.Stop())
        ours.close()
        with pytest.raises(EOFError):
            child.receive()
        assert child.ready()


def payloads_allocated(step: Callable[[], object]) -> float:
    """Return the peak of new memory, in payloads."""
    tracemalloc.start()
    try:
        step()
        return tracemalloc.get_traced_memory()[1] / PAYLOAD_BYTES
    finally:
        tracemalloc.stop()


PAYLOAD_BYTES = 8 << 20


def test_a_payload_is_copied_once_between_codec_and_socket():
    payload = bytes(PAYLOAD_BYTES)
    call, message = calls.Apply("peer", 1, 1, payload), Response(1, 1, payload)
    body, frame = bytes(pipe.encode(1, call)[pipe.HEADER.size :]), frames.encode(message)
    assert payloads_allocated(lambda: pipe.encode(1, call)) < 1.6
    assert payloads_allocated(lambda: pipe.decode_request(body)) < 1.1
    assert payloads_allocated(lambda: frames.encode(message)) < 1.6
    assert payloads_allocated(lambda: frames.decode("exchange", "peer", frame)) < 1.1
