"""One node at a glance: how it does, whether it helps, what it costs."""

from __future__ import annotations

import re

import pytest

from starling.node.status.snapshot import Point, Resources
from starling.tui.source import Reading
from tests.harness.snapshots import NOW, bare, full, snapshot
from tests.harness.tui.looking import BOTH, LARGE, SMALL, look, one, rows

pytestmark = pytest.mark.slow


@BOTH
def test_the_first_screen_says_how_the_run_goes(size):
    _, (screen,) = look(one(), size)
    for words in (
        "● training", "round 42/200", "accuracy 0.934 (round 40)", "loss 0.213", "4 members", "digits-of-ten", "…myself9",
        "pet", "sticky", "4,810 parameters", "helping: 80 exchanges so far", "312/s alone, – with the swarm, 840 in all",
        "12 kB/s, 2.4 MB in all", "13 kB/s, 2.5 MB in all", "80 done, 2 aborted, 1 busy, 3 timed out",
    ):  # fmt: skip
        assert words in screen
    assert "!" not in screen.splitlines()[0]


@BOTH
def test_costs_stand_beside_their_caps_and_the_machine_s_share(size):
    _, (screen,) = look([(Reading("n", full()),)], size)
    for words in (
        "312/s alone, 290/s with the swarm ▓▓▓▓▓▓▓▓▓░ 93 %", "12 kB/s of at most 50 kB/s ▓▓░░░░░░░░ 24 %", "CPU 1.2 cores", "memory 412 MB",
        "disk 3.1 MB", "GPU 41 % using 900 MB", "helping: 15 exchanges with 7 peers in the last 23 s",
    ):  # fmt: skip
        assert words in screen


def test_what_the_machine_does_not_have_is_left_out():
    _, (screen,) = look([(Reading("n", full(resources=Resources(cpu=0.5))),)], SMALL)
    (line,) = rows(screen, "machine")
    assert line.strip("│ ").split() == ["machine", "CPU", "0.5", "cores"]


@BOTH
def test_the_privacy_loss_is_shown_where_steps_are_noised_and_else_no_row_of_it(size):
    """A volunteer who set a noise sees ε grow; who did not is not told of a privacy that is not there."""
    _, (noised,) = look(one(epsilon=1.2345, delta=1e-5), size)
    _, (plain,) = look(one(), size)
    (line,) = rows(noised, "privacy")
    assert "ε 1.234 (δ 1e-05)" in line
    assert "privacy" not in plain


@BOTH
def test_rows_of_what_never_happened_take_no_room(size):
    _, (screen,) = look(one(), size)
    for words in ("engine restarts", "payload", "no cap", "GPU", "rejoined", "joined late"):
        assert words not in screen
    _, (screen,) = look(one(engine_restarts=2, payload_bytes=1000, joined_late=True), size)
    for words in ("engine restarts 2", "payload 1.0 kB", "joined late"):
        assert words in screen


@BOTH
def test_swarm_task_mix_and_overlay_are_labelled(size):
    """Four names in a row, of which two may be equal, say nothing."""
    _, (screen,) = look(one(name="digits"), size)
    assert "swarm digits  task digits  mix pet  overlay sticky" in screen


@BOTH
def test_the_speed_with_the_swarm_is_never_above_the_speed_alone(size):
    """A record of an older version may hold figures of different rounds."""
    _, (screen,) = look(one(steps_per_s=100.0, paced_per_s=130.0), size)
    assert "▓▓▓▓▓▓▓▓▓▓ 100 %" in screen
    assert "130 %" not in screen


@BOTH
def test_noise_of_a_bounded_metric_does_not_look_like_a_cliff(size):
    noise = tuple(Point(at, float(at), 0.951 + 0.001 * (at % 6)) for at in range(40))
    _, (screen,) = look(one(value_curve=noise), size)
    axis = [float(found) for found in re.findall(r"([\d.]+)┤", screen) if 0.85 < float(found) <= 1.0]
    assert max(axis) - min(axis) >= 0.099
    _, (screen,) = look(one(value_curve=noise, metric="error"), size)
    assert "0.956┤" in screen  # without a bound the axis is that of the values


@BOTH
def test_curves_have_axes_with_rounds_and_values(size):
    _, (screen,) = look([(Reading("n", full()),)], size)
    lines = screen.splitlines()
    assert "loss 0.140" in screen  # the last point, in the title
    assert "distance 6.1e-03" in screen
    assert any("2.300┤" in line for line in lines)
    axis = next(line for line in lines if "└" in line and "┬" in line)
    below = lines[lines.index(axis) + 1]
    assert below.split()[1] == "0"
    assert "42" in below
    assert "40" in below


def test_a_node_in_its_first_moment_knows_nothing_of_itself():
    _, (screen,) = look([(Reading("node-0", bare()),)], SMALL)
    for words in (
        "… starting",
        "value –",
        "loss –",
        "– parameters",
        "– alone, – with the swarm",
        "–  not known yet",
    ):
        assert words in screen


def test_one_point_and_a_constant_curve_can_be_drawn():
    point = snapshot().loss_curve[:1]
    flat = tuple(type(each)(each.round, each.time_s, 0.5) for each in snapshot().value_curve)
    _, (screen,) = look(one(loss_curve=point, value_curve=flat), SMALL)
    assert "loss 2.300" in screen
    assert "0.550┤" in screen  # the middle of an axis of a tenth


def test_points_that_are_no_numbers_do_not_end_the_program():
    odd = tuple(type(each)(each.round, each.time_s, float("inf")) for each in snapshot().loss_curve)
    _, (screen,) = look(one(loss_curve=odd, value_curve=odd[:1]), SMALL)
    assert "round 42/200" in screen


def test_events_are_shown_where_there_is_room():
    _, (small,) = look(one(), SMALL)
    _, (large,) = look(one(), LARGE)
    assert "the engine died" not in small
    assert "✗ the engine died; restarting it" in large


def test_a_replay_measures_ages_from_its_own_time():
    reading = Reading("n", snapshot(time_s=1000.0), as_of=1001.0)
    _, (screen,) = look([(reading,)], SMALL, clock=lambda: NOW)
    assert "no news" not in screen
