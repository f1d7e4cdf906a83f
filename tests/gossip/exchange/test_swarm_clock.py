"""The swarm clock agrees without a time server; strangers do not move it and liars hardly."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.exchange.swarm_clock import DRIFT, FRESH_S, GAIN, JUMP_S, LONGEST_S, UNKNOWN, SwarmClock
from starling.gossip.quorum import LEAST


def begun(time, now=0.0, **given):
    clock = SwarmClock(**given)
    clock.begin(time, now)
    return clock


def test_a_new_swarm_s_clock_starts_at_zero():
    clock = SwarmClock()
    assert clock.time(123.0) == UNKNOWN
    assert clock.slot(123.0, 1.0) == -1
    clock.begin(0.0, 123.0)
    assert clock.time(125.5) == 2.5
    assert clock.slot(125.5, 1.0) == 2


def test_early_reports_move_the_start_time_by_seconds_at_most():
    """Others may have seen the quorum earlier; a liar among two gains no more."""
    earlier = SwarmClock()
    earlier.observe("a", 2.0, 0.2, now=50.0)
    earlier.begin(0.0, 51.0)
    assert earlier.time(51.0) == pytest.approx(3.1)
    lied_to = SwarmClock()
    lied_to.observe("liar", 1e6, 0.0, now=50.0)
    lied_to.begin(0.0, 50.0)
    assert lied_to.time(50.0) == 0.0
    lied_to.observe("liar", FRESH_S, 0.0, now=50.0)
    lied_to.begin(0.0, 50.0)
    assert lied_to.time(50.0) == FRESH_S


def test_a_newcomer_takes_the_lower_median_of_reported_times():
    clock = SwarmClock()
    assert not clock.is_informed(others=5)
    for peer, time in (("a", 500.0), ("liar", 1e6), ("b", 500.2)):
        clock.observe(peer, time, 0.0, now=10.0)
    assert clock.is_informed(others=5)
    clock.begin(480.0, 11.0, old_s=20.0)
    assert clock.time(11.0) == pytest.approx(501.0)


def test_a_newcomer_ignores_times_that_its_model_s_round_contradicts():
    """Strangers need neither training nor a model to report a time, and a newcomer has no electors."""
    clock = SwarmClock()
    for stranger in range(8):
        clock.observe(f"ahead{stranger}", 1e6, 0.0, now=10.0)
        clock.observe(f"behind{stranger}", 1.0, 0.0, now=10.0)
    clock.begin(480.0, 10.0, old_s=5.0)
    assert clock.time(10.0) == 480.0
    clock.observe("a", 490.0, 0.0, now=10.0)
    clock.begin(480.0, 10.0, old_s=5.0)
    assert clock.time(10.0) == 490.0


def test_a_newcomer_that_hears_nobody_takes_the_time_of_its_round():
    clock = SwarmClock()
    assert clock.is_informed(others=0)
    clock.begin(480.0, 11.0)
    assert clock.time(11.0) == 480.0


@pytest.mark.parametrize("said", [UNKNOWN, -5.0, math.nan, math.inf, 2 * LONGEST_S])
def test_unknown_and_invalid_times_are_ignored(said):
    clock = begun(0.0)
    for peer in "abcd":
        clock.observe(peer, said, 0.0, now=100.0)
    assert clock.time(100.0) == 100.0


@given(
    honest=st.lists(st.floats(-0.2, 0.2), min_size=3, max_size=9),
    lies=st.lists(st.floats(-900.0, 1e6), max_size=3),
    strangers=st.lists(st.floats(-900.0, 1e6), max_size=30),
    repeats=st.integers(1, 30),
)
def test_with_fewer_than_a_third_of_liars_the_clock_stays_within_honest_values(honest, lies, strangers, repeats):
    lies = lies[: (len(honest) - 1) // 2]  # f liars among n > 3 f, this node among the honest
    clock = begun(1000.0 + honest[0], has_vote=lambda peer: not peer.startswith("stranger"))
    others = [("honest", honest[1:]), ("liar", lies), ("stranger", strangers)]
    for _ in range(repeats):
        for kind, errors in others:
            for number, error in enumerate(errors):
                clock.observe(f"{kind}{number}", 1000.0 + error, 0.0, now=0.0)
    assert min(honest) - 1e-6 <= clock.time(0.0) - 1000.0 <= max(honest) + 1e-6


@given(others=st.integers(1, LEAST - 1), lies=st.lists(st.floats(0.0, 1e6), min_size=1, max_size=200))
def test_among_too_few_members_a_liar_moves_the_clock_by_a_second_and_drift(others, lies):
    clock = begun(0.0)
    for second, lie in enumerate(lies):
        for peer in range(others):
            clock.observe(f"m{peer}", clock.time(float(second)) + lie, 0.0, now=float(second))
    assert abs(clock.time(len(lies)) - len(lies)) <= JUMP_S + DRIFT * len(lies)


def test_large_clock_errors_jump_to_the_electors_median_and_small_ones_are_slewed():
    clock = begun(1000.0)
    for peer in "abc":
        clock.observe(peer, 1000.5, 0.0, now=0.0)
    assert 1000.0 < clock.time(0.0) < 1000.0 + 3 * GAIN * JUMP_S
    for peer in "abc":
        clock.observe(peer, 2000.0, 0.0, now=0.0)
    assert clock.time(0.0) == pytest.approx(2000.0)


def test_merged_halves_of_a_swarm_agree_on_the_older_clock():
    clocks = [begun(5000.0), begun(5000.0), begun(3.0), begun(3.0)]
    for me, clock in enumerate(clocks):
        for peer in range(4):
            if peer != me:
                clock.observe(str(peer), clocks[peer].time(0.0), 0.0, now=0.0)
    assert [clock.time(0.0) for clock in clocks] == [5000.0] * 4


def test_a_swarm_of_drifting_clocks_stays_together():
    """An hour of eight nodes: clocks off by up to 175 parts per million, a probe per second, 40 ms of asymmetric delay."""
    drift = [1.0 + (i - 3.5) * 5e-5 for i in range(8)]
    clocks = [begun(0.0) for _ in drift]
    for second in range(1, 3600):
        for i, clock in enumerate(clocks):
            j = (i + 1 + second % 7) % 8
            clock.observe(str(j), clocks[j].time(second * drift[j]) - 0.02 * (second % 3), 0.04, second * drift[i])
    times = [clock.time(3600 * rate) for clock, rate in zip(clocks, drift, strict=True)]
    assert max(times) - min(times) < 0.1


def test_a_departed_peer_has_no_vote():
    clock = begun(1000.0)
    clock.observe("a", 1000.4, 0.0, now=0.0)
    clock.forget("a")
    before = clock.time(0.0)
    clock.observe("b", before, 0.0, now=0.0)
    assert clock.time(0.0) == pytest.approx(before)


def test_time_in_which_the_machine_slept_is_added_and_earlier_votes_are_dropped():
    clock = begun(100.0)
    for peer in "abc":
        clock.observe(peer, 100.0, 0.0, now=0.0)
    clock.suspended(3600.0, now=5.0)
    assert clock.time(5.0) == 3705.0
    clock.observe("a", 3705.0, 0.0, now=5.0)
    assert clock.time(5.0) == 3705.0, "what the others told is of before"


@given(start=st.floats(0.0, 1e6), now=st.floats(0.0, 1e6), slot_s=st.floats(0.01, 100.0))
def test_sleeping_until_the_next_slot_ends_in_it(start, now, slot_s):
    clock = begun(start)
    slot = clock.slot(now, slot_s)
    at = clock.next_slot_at(now, slot_s)
    assert at > now
    assert clock.slot(at, slot_s) == slot + 1
    assert clock.slot(at - 2e-6, slot_s) == slot
