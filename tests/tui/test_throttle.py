"""What costs much is drawn when it would be another picture, at once if one asks for it, and else not at every poll."""

from __future__ import annotations

from starling.tui.throttle import REST_S, Rest
from starling.tui.view import View


def test_the_same_picture_is_never_drawn_again():
    rest = Rest()
    assert rest.over("a", View(now=0.0))
    assert not rest.over("a", View(now=100.0))


def test_another_one_waits_for_the_rest_to_be_over_unless_somebody_asks():
    rest = Rest()
    assert rest.over("a", View(now=10.0, asked=False))
    assert not rest.over("b", View(now=10.0 + REST_S / 2, asked=False))
    assert rest.over("c", View(now=10.0 + REST_S, asked=False))
    assert rest.over("d", View(now=10.0 + REST_S, asked=True))


def test_a_clock_that_was_set_back_does_not_stop_it():
    rest = Rest()
    rest.over("a", View(now=10.0, asked=False))
    assert rest.over("b", View(now=5.0, asked=False))
