"""The adaptive deadline, and estimates from recent answers, payloads and calls."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.exchange.estimates import UNLEARNED, Deadline

waits = st.lists(st.one_of(st.none(), st.floats(0.0, 100.0)), max_size=80)


def after(outcomes, *, low=0.25, high=10.0):
    deadline = Deadline(low, high)
    for wait in outcomes:
        deadline.observe(wait)
    return deadline


@given(outcomes=waits)
def test_the_deadline_never_leaves_its_bounds(outcomes):
    assert 0.25 <= after(outcomes).wait_s() <= 10.0


def test_the_deadline_is_the_maximum_before_five_answers():
    assert after([0.5] * 4).wait_s() == 10.0
    assert after([0.5] * 5).wait_s() < 1.0


def test_between_the_first_answer_and_the_fifth_the_deadline_is_a_multiple_of_a_round():
    """A node five times slower that had a round without a link comes ten rounds later."""
    assert after([]).wait_s(0.1) == 10.0
    assert after([None, 0.01]).wait_s(0.1) == pytest.approx(UNLEARNED * 0.1)
    assert after([3.0] * 4).wait_s(0.1) == pytest.approx(UNLEARNED * 0.1), "what was waited for is no measure of what is needed"
    assert after([0.01]).wait_s(0.001) == 0.25
    assert after([0.01]).wait_s(9.0) == 10.0
    assert not after([0.01] * 4).learned
    assert after([0.01] * 5).learned
    assert UNLEARNED >= 10.0


def test_the_deadline_is_the_median_plus_four_median_deviations():
    """Median 1.0; the deviations .2 .1 0 .1 .2 have median .1."""
    assert after([0.8, 0.9, 1.0, 1.1, 1.2]).wait_s() == pytest.approx(1.4)


def test_equal_answers_leave_a_margin_for_the_next():
    assert after([1.0] * 32).wait_s() == pytest.approx(1.2)


def test_only_recent_outcomes_count():
    assert after([9.0] * 50 + [1.0] * 32).wait_s() == after([1.0] * 32).wait_s()


def test_one_dead_peer_does_not_change_the_deadline():
    spread = [0.8, 0.9, 1.0, 1.1, 1.2] * 6
    with_dead = [outcome for wait in spread for outcome in (wait, None)]
    assert after(with_dead).wait_s() == pytest.approx(after(spread).wait_s(), rel=0.15)


def test_the_deadline_does_not_fall_by_timing_out_slow_answers():
    rng = np.random.default_rng(0)
    deadline = Deadline(1e-6, 100.0)
    late = 0
    for wait in rng.exponential(1.0, 2000):
        if wait <= deadline.wait_s():
            deadline.observe(wait)
        else:
            late += 1
            deadline.observe(None)
    assert late < 0.2 * 2000
    assert deadline.wait_s() > 1.0


def test_the_deadline_adapts_when_the_whole_network_slows_down():
    deadline = after([0.3] * 32)
    late = 0
    for _ in range(100):
        if deadline.wait_s() >= 3.0:
            deadline.observe(3.0)
        else:
            late += 1
            deadline.observe(None)
    assert late < 60
    assert deadline.wait_s() == pytest.approx(3.6)


@pytest.mark.parametrize(("low", "high", "k"), [(0.0, 1.0, 4.0), (2.0, 1.0, 4.0), (0.1, 1.0, 2.0)])
def test_invalid_bounds_are_refused(low, high, k):
    with pytest.raises(ValueError):
        Deadline(low, high, k)
