"""Expensive drawings are made only when they change: at once on request, otherwise not at every poll."""

from starling.tui.view import REDRAW_S, Throttle, View


def test_an_unchanged_picture_is_not_redrawn():
    throttle = Throttle()
    assert throttle.due("a", View(now=0.0))
    assert not throttle.due("a", View(now=100.0))


def test_the_next_drawing_waits_unless_requested():
    throttle = Throttle()
    assert throttle.due("a", View(now=10.0, asked=False))
    assert not throttle.due("b", View(now=10.0 + REDRAW_S / 2, asked=False))
    assert throttle.due("c", View(now=10.0 + REDRAW_S, asked=False))
    assert throttle.due("d", View(now=10.0 + REDRAW_S, asked=True))


def test_a_clock_that_was_set_back_does_not_stop_it():
    throttle = Throttle()
    throttle.due("a", View(now=10.0, asked=False))
    assert throttle.due("b", View(now=5.0, asked=False))
