"""A slow node does fewer local steps; a node that had to wait does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.exchange.local_steps import LocalSteps


def test_a_machine_four_times_slower_does_a_quarter_of_the_steps():
    steps = LocalSteps(20)
    assert steps.passed(4, 4.0, 0.0) == 5
    assert steps.passed(1, 1.0, 0.0) == 7
    for _ in range(10):
        steps.passed(1, 1.0, 0.0)
    assert steps.now == 20


def test_a_node_delayed_by_others_still_does_all_local_steps():
    steps = LocalSteps(10)
    for _ in range(20):  # rounds of the swarm take 0.5 s, and so would this node's
        assert steps.passed(2, 1.0, 0.5) == 10


def test_rounds_spent_waiting_count_if_the_swarm_is_ahead():
    steps = LocalSteps(10)
    for _ in range(3):
        steps.passed(1, 1.0, 0.6)
    assert steps.passed(3, 0.4, 0.0) == 10
    slow = LocalSteps(10)
    for _ in range(3):
        slow.passed(1, 1.0, 0.0)
    assert slow.passed(3, 1.0, 0.0) == 3


@given(st.integers(1, 100), st.floats(1.06, 8.0), st.floats(0.0, 0.3))
def test_a_slow_node_adapts_to_the_swarms_pace(most, slower, waited):
    """Its own work takes `slower` rounds of the swarm, less in proportion to fewer local steps, plus its waits."""
    steps, behind, kept_up = LocalSteps(most), 0.0, 0
    for _ in range(200):
        own = slower * steps.now / most
        behind += own + waited - 1.0
        passed = 1 + int(max(0.0, behind))
        behind = max(0.0, behind - passed + 1)
        kept_up += passed == 1
        assert 1 <= steps.passed(passed, own + waited, waited) <= most
    assert kept_up >= 200 / 3 or slower / most + waited > 0.95  # or a single local step is already too slow


@pytest.mark.parametrize("seconds", [0.0, 1e-9])
def test_a_round_of_zero_seconds_is_accepted(seconds):
    assert LocalSteps(4).passed(2, seconds, 0.0) == 2
