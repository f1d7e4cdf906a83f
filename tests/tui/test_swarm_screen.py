"""The swarm's screen: the drawing, what it comes to, every member."""

from __future__ import annotations

import pytest

from starling.tui.source import Reading
from tests.harness.snapshots import IDS, full, snapshot
from tests.harness.tui.looking import BOTH, LARGE, SMALL, look, many, one, rows, swarm

pytestmark = pytest.mark.slow


@BOTH
def test_it_shows_overlay_members_and_figures_of_all_attached_nodes(size):
    _, (_, screen) = look([swarm()], size, keys=("2",))
    for words in (
        "●[node-0]", "● node-4", "━ pairs of this round 4  ┄ edges 13", "8 (0 gone), 8 attached", "accuracy  0.927 (0.920–0.934)",
        "distance  0.0141 (0.0123–0.0158)", "2,348/s of 8 attached", "96 kB/s of 8 attached", "12 % of their steps",
    ):  # fmt: skip
        assert words in screen
    for number in range(8):
        assert rows(screen, f"node-{number}", "● training", "42")


def test_n_chooses_another_node_in_the_drawing():
    _, seen = look([swarm()], SMALL, keys=("2", "n"))
    assert "●[node-1]" in seen[2]
    assert "[node-0]" not in seen[2].splitlines()[2]


def test_y_copies_the_member_under_the_cursor():
    app, _ = look([swarm()], SMALL, keys=("2", "down", "down", "y"))
    assert app.clipboard == IDS[2]


def test_one_node_alone_says_what_it_cannot_know():
    _, (_, screen) = look(one(), SMALL, keys=("2",))
    assert "its share" not in screen
    assert "distance" not in screen
    assert "━ pairs of this round –" in screen
    assert rows(screen, "…unkno02", "? suspect")


def test_too_many_for_a_circle_are_listed():
    _, (_, screen) = look([tuple(many(40))], LARGE, keys=("2",))
    assert "┄ peer-001, peer-002, peer-038, peer-039" in screen
    assert "members 40" in screen


def test_nobody_is_known_before_a_node_speaks():
    _, (_, screen) = look([()], SMALL, keys=("2",))
    assert "–  no member known yet" in screen
    assert snapshot().name not in screen


def test_no_figure_is_cut_on_a_small_terminal():
    """Distances late in a run have exponents."""
    _, (_, screen) = look(
        [tuple(Reading(f"node-{n}", full(n, distance=4.9e-3 + n * 1e-4)) for n in range(8))], SMALL, keys=("2",)
    )
    assert "(4.9e-03–5.6e-03)" in screen
