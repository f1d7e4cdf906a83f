"""A curve of any length in bounded memory."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from starling.node.status.curve import Curve


@settings(deadline=None, max_examples=60)
@given(count=st.integers(0, 3000), limit=st.integers(4, 240))
def test_a_curve_keeps_its_ends_its_order_and_even_spacing_in_bounded_memory(count, limit):
    """A drawn curve must start and end where the run did, and not lie about pace in between."""
    curve = Curve(limit)
    for number in range(count):
        curve.add(number, float(number), 1.0)
    rounds = [point.round for point in curve.points]
    assert len(rounds) == min(count, len(rounds)) <= limit
    if not count:
        return
    assert rounds[0] == 0
    assert rounds[-1] == count - 1
    gaps = [later - earlier for earlier, later in itertools.pairwise(rounds)]
    assert len(set(gaps[:-1])) <= 1
    assert all(0 < gap <= gaps[0] for gap in gaps)
    assert len(rounds) >= min(count, limit // 2)


def test_a_value_that_is_not_finite_is_not_a_point():
    curve = Curve()
    for value in (1.0, float("nan"), float("inf"), 2.0):
        curve.add(0, 0.0, value)
    assert [point.value for point in curve.points] == [1.0, 2.0]
