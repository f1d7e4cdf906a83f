"""The swarm clock: agreement without a time server, and byzantine that do not move it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.exchange.swarm_clock import GAIN, JUMP_S, LONGEST_S, UNKNOWN, SwarmClock


def synchronised(time, now=0.0):
    clock = SwarmClock()
    clock.observe("first", time, 0.0, now)
    clock.forget("first")
    return clock


def test_a_founder_begins_at_zero():
    clock = SwarmClock()
    assert clock.time(123.0) == 0.0
    assert clock.time(125.5) == 2.5


def test_a_newcomer_takes_the_first_time_it_receives_plus_half_the_round_trip():
    clock = SwarmClock(patience_s=10.0)
    assert clock.time(50.0) == UNKNOWN
    clock.observe("a", 1000.0, 0.2, now=51.0)
    assert clock.time(52.0) == pytest.approx(1001.1)


def test_without_peers_the_clock_begins_at_zero_after_the_wait():
    clock = SwarmClock(patience_s=10.0)
    assert clock.slot(50.0, 1.0) == -1
    assert clock.next_slot_at(50.0, 1.0) == 60.0
    assert clock.time(60.0) == 0.0
    assert clock.slot(61.5, 1.0) == 1


@pytest.mark.parametrize("said", [UNKNOWN, -5.0, math.nan, math.inf, 2 * LONGEST_S])
def test_unknown_and_invalid_times_are_ignored(said):
    founder = SwarmClock()
    founder.time(0.0)
    founder.observe("newcomer", said, 0.0, now=100.0)
    assert founder.time(100.0) == 100.0


@given(
    honest=st.lists(st.floats(-0.2, 0.2), min_size=3, max_size=8),
    lie=st.floats(-900.0, 1e6),
    repeats=st.integers(1, 30),
)
def test_one_byzantine_peer_among_three_honest_cannot_move_the_clock_beyond_an_honest_one(honest, lie, repeats):
    clock = synchronised(1000.0 + honest[0])
    for _ in range(repeats):
        for peer, error in enumerate(honest):
            clock.observe(f"honest{peer}", 1000.0 + error, 0.0, now=0.0)
        clock.observe("byzantine", 1000.0 + lie, 0.0, now=0.0)
    assert min(honest) - 1e-6 <= clock.time(0.0) - 1000.0 <= max(honest) + 1e-6


def test_a_false_first_time_is_corrected_by_the_others():
    clock = SwarmClock(patience_s=10.0)
    clock.observe("byzantine", 77.0, 0.0, now=0.0)
    for peer in "abc":
        clock.observe(peer, 5000.0, 0.0, now=0.0)
    assert clock.time(0.0) == 5000.0


def test_small_errors_are_slewed_and_large_ones_jumped():
    clock = synchronised(1000.0)
    for peer in "abc":
        clock.observe(peer, 1000.5, 0.0, now=0.0)
    assert 1000.0 < clock.time(0.0) < 1000.0 + 3 * GAIN * JUMP_S
    for peer in "abc":
        clock.observe(peer, 2000.0, 0.0, now=0.0)
    assert clock.time(0.0) == pytest.approx(2000.0)


def test_two_that_meet_agree_on_the_older_clock_instead_of_swapping():
    old, young = synchronised(5000.0), synchronised(3.0)
    said_old, said_young = old.time(0.0), young.time(0.0)
    old.observe("young", said_young, 0.0, now=0.0)
    young.observe("old", said_old, 0.0, now=0.0)
    assert old.time(0.0) == young.time(0.0) == 5000.0


def test_a_swarm_of_drifting_clocks_stays_together():
    """An hour of eight nodes: clocks off by up to 175 parts per million, a probe a second, 40 ms of lopsided delay."""
    drift = [1.0 + (i - 3.5) * 5e-5 for i in range(8)]
    clocks = [synchronised(0.0) for _ in drift]
    for second in range(1, 3600):
        for i, clock in enumerate(clocks):
            j = (i + 1 + second % 7) % 8
            clock.observe(str(j), clocks[j].time(second * drift[j]) - 0.02 * (second % 3), 0.04, second * drift[i])
    times = [clock.time(3600 * rate) for clock, rate in zip(clocks, drift, strict=True)]
    assert max(times) - min(times) < 0.1


def test_a_peer_that_left_votes_no_more():
    clock = synchronised(1000.0)
    clock.observe("a", 1000.4, 0.0, now=0.0)
    clock.forget("a")
    before = clock.time(0.0)
    clock.observe("b", before, 0.0, now=0.0)
    assert clock.time(0.0) == pytest.approx(before)


@given(start=st.floats(0.0, 1e6), now=st.floats(0.0, 1e6), slot_s=st.floats(0.01, 100.0))
def test_sleeping_until_the_next_slot_ends_in_it(start, now, slot_s):
    clock = synchronised(start)
    slot = clock.slot(now, slot_s)
    at = clock.next_slot_at(now, slot_s)
    assert at > now
    assert clock.slot(at, slot_s) == slot + 1
    assert clock.slot(at - 2e-6, slot_s) == slot


def test_negative_patience_is_refused():
    with pytest.raises(ValueError, match="patience_s"):
        SwarmClock(patience_s=-1.0)
