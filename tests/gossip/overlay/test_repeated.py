"""Several exchanges after each phase of local steps, with the overlay's next partners."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.errors import ConfigError
from starling.gossip.overlay.catalogue import overlay
from starling.gossip.overlay.one_peer import OnePeerExponential, RandomMatching
from starling.gossip.overlay.repeated import Repeated
from starling.gossip.overlay.stages import stage, turn
from starling.gossip.overlay.static import Ring

inners = st.sampled_from([Ring(), OnePeerExponential(), RandomMatching(4)])


@given(inner=inners, n=st.integers(1, 40), times=st.integers(1, 8), phase=st.integers(0, 500))
def test_a_phase_begins_with_local_steps_and_ends_with_the_average(inner, n, times, phase):
    part = Repeated(inner, times)
    rounds = range(phase * times, (phase + 1) * times)
    stages = [stage(part, n, t) for t in rounds]
    assert [each.local for each in stages] == [True] + [False] * (times - 1)
    assert [each.first for each in stages] == [True] + [False] * (times - 1)
    assert [each.last for each in stages] == [False] * (times - 1) + [True]
    assert {turn(part, n, t) for t in rounds} == {phase}


@given(inner=inners, n=st.integers(1, 40), times=st.integers(1, 8), round=st.integers(0, 500), data=st.data())
def test_partners_are_those_of_the_overlay_s_own_rounds(inner, n, times, round, data):
    part, rank = Repeated(inner, times), data.draw(st.integers(0, n - 1))
    assert part.row(rank, n, round) == inner.row(rank, n, round)
    assert part.symmetric == inner.symmetric
    period = inner.period(n)
    assert part.period(n) == (None if period is None else math.lcm(period, times))


def test_one_exchange_a_phase_is_the_overlay_itself_and_none_is_refused():
    assert overlay("ring", 2, 0, gossips=1) == Ring()
    assert overlay("ring", 2, 0, gossips=3) == Repeated(Ring(), 3)
    with pytest.raises(ConfigError, match=r"pace.*must be >= 1"):
        overlay("ring", 2, 0, gossips=0)
