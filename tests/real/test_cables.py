"""Emulated links between hosts on one machine have the configured delay, rate and loss."""

import random
import socket
import time
from contextlib import suppress

import pytest

from tests.harness.cables import Direction, Line, inside
from tests.harness.namespaces import lan

FRAME = bytes(1250)  # a millisecond of 10 Mbit/s


def sent(line, frames, every_s=0.0, seed=1):
    """Return arrivals as (time, frame) of frames sent at this interval."""
    direction = Direction(line, random.Random(seed))
    for number, frame in enumerate(frames):
        direction.send(frame, number * every_s)
    arrivals = []
    while direction.under_way:
        now = direction.due()
        arrivals += [(now, frame) for frame in direction.arrived(now)]
    return arrivals


def test_a_frame_arrives_after_its_transmission_time_and_delay():
    (at, frame), (later, _) = sent(Line(10, delay_ms=20), [FRAME, FRAME])
    assert frame == FRAME
    assert (at, later) == pytest.approx((0.021, 0.022))


def test_an_idle_line_accumulates_no_capacity():
    arrivals = sent(Line(10), [FRAME] * 3, every_s=0.1)
    assert [at for at, _ in arrivals] == pytest.approx([0.001, 0.101, 0.201])


def test_frames_that_would_wait_too_long_are_lost_and_the_others_keep_their_order():
    frames = [number.to_bytes(2, "big") * 625 for number in range(50)]
    arrivals = sent(Line(10, queue_ms=9.5), frames)
    assert [frame for _, frame in arrivals] == frames[:10]


def test_the_configured_share_of_frames_is_lost_reproducibly():
    frames = [number.to_bytes(4, "big") for number in range(20_000)]
    line = Line(10, loss=0.05)
    arrived = sent(line, frames, every_s=0.001)
    assert 0.94 < len(arrived) / len(frames) < 0.96
    assert arrived == sent(line, frames, every_s=0.001) != sent(line, frames, every_s=0.001, seed=2)


def opened(host, address):
    with inside(host):
        end = socket.socket(type=socket.SOCK_DGRAM)
        end.bind((address, 4000))
        end.settimeout(0.15)
    return end


def crossed(source, to, numbers):
    """Send numbered full-size datagrams at once; return the numbers that arrive, and when; late ones of earlier calls are ignored."""
    for number in numbers:
        source.sendto(number.to_bytes(4, "big") + bytes(1468), to.getsockname())
    arrivals = []
    with suppress(TimeoutError):
        while len(arrivals) < len(numbers):
            number = int.from_bytes(to.recv(2000)[:4], "big")
            arrivals += [(number, time.monotonic())] * (number in numbers)
    return arrivals


@pytest.mark.real
@pytest.mark.slow
def test_emulated_links_have_the_configured_delay_rate_and_loss():
    """A packet crosses two lines, its sender's and its receiver's."""
    line = Line(20, delay_ms=15, loss=0.05, queue_ms=1000)
    with lan(2, line) as hosts, opened(hosts[0], "10.96.0.1") as one, opened(hosts[1], "10.96.0.2") as other:
        crossed(one, other, [0])  # resolves the address
        delays = []
        for number, (source, to) in enumerate([(one, other), (other, one)] * 4, start=1):
            began = time.monotonic()
            delays += [at - began for _, at in crossed(source, to, [number])]
        burst = crossed(one, other, range(1000, 1400))
    sending_s = 2 * 8e-6 * 1514 / 20
    assert 0.03 + sending_s <= min(delays) < 0.033 + sending_s
    numbers, times = zip(*burst, strict=True)
    assert list(numbers) == sorted(numbers)
    assert len(numbers) / 400 == pytest.approx(0.95**2, abs=0.075), "five standard deviations"
    mbit = 8e-6 * 1514 * (numbers[-1] - numbers[0]) / (times[-1] - times[0])
    assert mbit == pytest.approx(20, rel=0.05)
