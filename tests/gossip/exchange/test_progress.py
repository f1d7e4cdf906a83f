"""How far the swarm is, when some peers lie about it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.exchange.progress import PeerProgress


def lead(rounds):
    return PeerProgress({f"p{i}": at for i, at in enumerate(rounds)}).lead


@pytest.mark.parametrize(("rounds", "expected"), [([], 0), ([7], 7), ([7, 9, 3], 9)])
def test_few_reports_are_believed(rounds, expected):
    assert lead(rounds) == expected


@given(honest=st.lists(st.integers(0, 1000), min_size=1, max_size=30), data=st.data())
def test_less_than_a_third_of_byzantine_peers_cannot_exceed_the_honest_lead(honest, data):
    """Whatever f of 3f + 1 claim, no honest node jumps past the furthest honest one: training cannot be ended by a number."""
    byzantine = data.draw(st.lists(st.integers(0, 2**62), max_size=(len(honest) - 1) // 2))
    assert lead([*honest, *byzantine]) <= max(honest)
