"""How far the swarm is, when some peers lie about it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.exchange.progress import credible_lead


def test_nobody_has_spoken():
    assert credible_lead([]) == 0


def test_few_voices_are_believed():
    """A node that restarts hears one or two peers at first and must not wait for more."""
    assert credible_lead([7]) == 7
    assert credible_lead([7, 9, 3]) == 9


@given(honest=st.lists(st.integers(0, 1000), min_size=1, max_size=30), data=st.data())
def test_fewer_liars_than_a_third_move_nobody_beyond_the_honest(honest, data):
    """Whatever f of 3f + 1 claim, no honest node jumps past the furthest honest one: training cannot be ended by a number."""
    liars = data.draw(st.lists(st.integers(0, 2**62), max_size=(len(honest) - 1) // 2))
    assert credible_lead([*honest, *liars]) <= max(honest)
