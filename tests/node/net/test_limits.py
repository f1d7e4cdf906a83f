"""Token buckets, the pacer and the bounded inbox: never more than the cap, and never less than is due."""

import itertools
from contextlib import suppress

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.limits import TokenBucket
from starling.gossip.wire.schema import MAX_FRAME_BYTES
from starling.node.net.api import Inbound
from starling.node.net.inbox import IN_A_ROW, Inbox
from starling.node.net.limits import Pacer
from tests.harness.virtual import virtual
from tests.strategies import examples

requests = st.lists(st.tuples(st.floats(0, 2), st.floats(0, 20)), max_size=60)


@given(rate=st.floats(0.1, 100), burst=st.floats(0.1, 50), requests=requests)
@examples(60)
def test_a_bucket_never_gives_more_than_rate_times_time_plus_burst(rate, burst, requests):
    """The defining inequality of a limit, over every window that starts with the first request."""
    bucket, now, given_out = TokenBucket(rate, burst), 0.0, 0.0
    for wait, amount in requests:
        now += wait
        if bucket.take(amount, now):
            given_out += amount
        assert given_out <= rate * now + burst + 1e-6 * (1 + given_out)


@given(rate=st.floats(0.1, 100), burst=st.floats(0.1, 50), wait=st.floats(0, 100))
@examples(60)
def test_after_a_pause_the_burst_is_available_again(rate, burst, wait):
    bucket = TokenBucket(rate, burst)
    assert bucket.take(burst, 0.0)
    assert bucket.take(min(burst, rate * wait) * 0.999, wait)


def test_a_stopped_clock_refills_nothing_and_a_bucket_needs_rate_and_size():
    bucket = TokenBucket(10.0, 5.0)
    assert bucket.take(5.0, 100.0)
    assert not bucket.take(0.1, 100.0)
    assert not bucket.take(0.1, 50.0)
    assert bucket.take(5.0, 100.5)
    for rate, burst in ((0, 1), (1, 0), (-1, 1)):
        with pytest.raises(ValueError, match="must be > 0"):
            TokenBucket(rate, burst)


@pytest.mark.parametrize("cap", [10_000, 1_000_000, 100_000_000, 0])
@virtual
async def test_a_pacer_keeps_its_cap_for_pieces_of_any_size(cap):
    """Ten seconds' worth of bytes take ten seconds, less at most one burst; without a cap they take none."""
    pacer, left, start = Pacer(cap), 10 * (cap or 10**7), trio.current_time()
    while left:
        piece = min(left, pacer.piece_bytes)
        await pacer.passed(piece)
        left -= piece
    assert trio.current_time() - start == (pytest.approx(9.9, abs=0.11) if cap else 0.0)


def ten_seconds(passed, begin, end):
    """Return the fewest and most bytes in any ten seconds from `begin` to `end`, of (time, bytes) in order."""
    sums = [sum(count for at, count in passed if start <= at < start + 10.0) for start, _ in passed if begin <= start <= end - 10.0]
    return min(sums), max(sums)


async def send(pacer, streams, until_s, passed):
    """Run streams that always have bytes of all sizes to send, and record what passed when."""

    async def stream(number):
        sizes, turn = (1.0, 0.3, 0.07, 0.9), number
        while trio.current_time() < until_s:
            count = int(sizes[turn % len(sizes)] * pacer.piece_bytes)
            await pacer.passed(count)
            passed.append((trio.current_time(), count))
            turn += 1

    async with trio.open_nursery() as nursery:
        for number in range(streams):
            nursery.start_soon(stream, number)


@pytest.mark.parametrize("streams", [1, 5])
@pytest.mark.parametrize("cap", [64_000, 1_000_000, 100_000_000])
@virtual
async def test_any_ten_seconds_exceed_a_cap_by_at_most_five_per_cent_and_use_nine_tenths_of_it(cap, streams):
    passed = []
    await send(Pacer(cap), streams, 25.0, passed)
    least, most = ten_seconds(passed, 0.0, 25.0)
    assert 0.9 * 10 * cap <= least <= most <= 1.05 * 10 * cap


@pytest.mark.parametrize(("before", "after"), [(1_000_000, 64_000), (64_000, 1_000_000), (0, 64_000)])
@virtual
async def test_a_changed_cap_applies_at_once(before, after):
    pacer, passed = Pacer(before), []
    async with trio.open_nursery() as nursery:
        if before:
            nursery.start_soon(send, pacer, 5, 40.0, passed)
        await trio.sleep(10.05)
        pacer.change(after)
        if not before:
            nursery.start_soon(send, pacer, 5, 40.0, passed)
    piece = Pacer(before).piece_bytes if before else 0
    least, most = ten_seconds(passed, 10.05, 40.0)
    assert 0.9 * 10 * after - piece <= least <= most <= 1.05 * 10 * after + piece
    least, most = ten_seconds(passed, 25.0, 40.0)
    assert 0.9 * 10 * after <= least <= most <= 1.05 * 10 * after


@virtual
async def test_a_paced_sender_resumes_when_the_cap_is_lifted_or_changed():
    for after, waited in ((0, 1.0), (10_000, 1.0 + (10_000 - 13) / 10_000), (1, 1.0 + 10_000)):
        pacer, start = Pacer(1), trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pacer.passed, 10_000)
            await trio.sleep(1.0)
            pacer.change(after)
        assert trio.current_time() - start == pytest.approx(waited, rel=0.01)


def test_waiting_frames_are_delivered_round_robin_by_peer():
    async def main() -> list[tuple[str, bytes]]:
        inbox = Inbox("control", 10)
        for i in range(5):
            assert inbox.put(Inbound("a", "control", bytes([i]))) == ()
        assert inbox.put(Inbound("b", "control", b"b")) == ()
        got = [await inbox.receive() for _ in range(6)]
        return [(inbound.peer, inbound.frame) for inbound in got]

    a = [("a", bytes([i])) for i in range(5)]
    assert trio.run(main) == [a[0], ("b", b"b"), *a[1:]]


@virtual
async def test_receiving_many_frames_yields_to_other_tasks():
    inbox, ran, got = Inbox("control", 100), [], []

    async def other() -> None:
        while len(got) < 100:
            ran.append(len(got))
            await trio.lowlevel.checkpoint()

    async def reader() -> None:
        with suppress(trio.EndOfChannel):
            while True:
                got.append((await inbox.receive()).frame)

    for i in range(100):
        inbox.put(Inbound("a", "control", bytes([i])))
    with trio.CancelScope() as over:
        over.cancel()
        await inbox.receive()
    assert over.cancelled_caught, "as of any other call that may wait"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        nursery.start_soon(reader)
        await trio.sleep(1.0)
        assert got == [bytes([i]) for i in range(100)]
        assert max(b - a for a, b in itertools.pairwise(ran)) <= 2 * IN_A_ROW, "whoever of both runs first in a turn"
        inbox.put(Inbound("a", "control", b"later"))
        await trio.sleep(1.0)
        assert got[-1] == b"later"
        inbox.put(Inbound("a", "control", b"lost"))
        inbox.close()
        await trio.sleep(1.0)
        assert got[-1] == b"later"
        nursery.cancel_scope.cancel()


def test_an_inbox_never_holds_more_than_two_of_the_largest_frames():
    """64 frames of the largest kind would be 16 GiB, so bytes are bounded too, over all peers."""

    async def main() -> int:
        inbox = Inbox("state", 64)
        frame = bytes(MAX_FRAME_BYTES["state"])
        return sum(inbox.put(Inbound(str(i), "state", frame)) == () for i in range(10))

    assert trio.run(main) == 2


def test_a_full_inbox_drops_frames_of_the_peer_with_most():
    """Two frames of a quarter megabyte once blocked those of every other peer."""

    async def main() -> list[bytes]:
        inbox, large = Inbox("control", 64), bytes(250_000)
        assert [inbox.put(Inbound("noisy", "control", large)) for _ in range(3)] == [(), (), ("noisy",)]
        assert inbox.put(Inbound("honest", "control", bytes(20_000))) == ()
        assert inbox.put(Inbound("another", "control", bytes(20_000))) == ("noisy",)
        assert inbox.put(Inbound("noisy", "control", large)) == ("noisy",)
        assert inbox.put(Inbound("third", "control", bytes(230_000))) == ()
        assert inbox.put(Inbound("late", "control", large)) == ("late",), "it would hold as much as the others"
        assert inbox.put(Inbound("late", "control", bytes(20_000))) == ("noisy",)
        got = [await inbox.receive() for _ in range(4)]
        assert inbox.put(Inbound("noisy", "control", large)) == ()
        return [(inbound.peer, len(inbound.frame)) for inbound in got]

    assert trio.run(main) == [("honest", 20_000), ("another", 20_000), ("third", 230_000), ("late", 20_000)]
