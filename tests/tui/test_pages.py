"""The pages Node, Swarm and Edge: texts and figures beyond those in `test_snapshots`, and the choice of an edge."""

import re

import pytest

from starling.node.status.snapshot import Point, Resources, Transfer
from starling.tui.source import Reading
from tests.harness.snapshots import IDS, NOW, bare, full, snapshot
from tests.harness.tui.looking import BOTH, LARGE, SMALL, look, many, one, rows, screen_text, swarm, until

pytestmark = pytest.mark.slow

NOISE = tuple(Point(at, float(at), 0.951 + 0.001 * (at % 6)) for at in range(40))
FLAT = tuple(Point(each.round, each.time_s, 0.5) for each in snapshot().value_curve)
INFINITE = tuple(Point(each.round, each.time_s, float("inf")) for each in snapshot().loss_curve)
UNDER_WAY = (Transfer(IDS[2], "exchange", 12_000_000, None, 45.0), Transfer(IDS[1], "model", 52_000_000, 120_000_000, 63.0))


def node(**changes):
    return (Reading("n", full(**changes)),)


@BOTH
@pytest.mark.parametrize(
    ("key", "readings", "present", "absent"),
    [
        (
            "1",
            one()[0],
            (
                "● training",
                "round 42/200",
                "accuracy 0.934 (round 40)",
                "loss 0.213",
                "4 members",
                "…myself9",
                "4,810 parameters",
                "helping: 80 exchanges so far",
                "312/s computing, – with waiting, 840 in all",
                "12 kB/s, 2.4 MB in all",
                "13 kB/s, 2.5 MB in all",
                "80 done, 2 aborted, 1 busy, 3 timed out",
            ),
            ("engine restarts", "payload", "no cap", "GPU", "rejoined", "joined late", "privacy"),
        ),
        ("1", one(name="digits")[0], ("swarm digits  task digits  mix pet  overlay sticky",), ()),
        ("1", one(epsilon=1.2345, delta=1e-5)[0], ("ε 1.234 (δ 1e-05)",), ()),
        ("1", one(engine_restarts=2, payload_bytes=1000, joined_late=True)[0], ("engine restarts 2", "payload 1.0 kB", "joined late"), ()),
        ("1", one(steps_per_s=100.0, paced_per_s=130.0)[0], ("▓▓▓▓▓▓▓▓▓▓ 100 %",), ("130 %",)),  # a peer of an older version
        ("1", node(resources=Resources(cpu=0.5)), ("machine   CPU 0.5 cores  ",), ("memory", "disk", "GPU")),
        (
            "1",
            (Reading("node-0", bare()),),
            ("… starting", "value –", "loss –", "– parameters", "– computing, – with waiting", "–  not known yet"),
            (),
        ),
        # one point, and a constant in the middle of an axis of a tenth
        ("1", one(loss_curve=snapshot().loss_curve[:1], value_curve=FLAT)[0], ("loss 2.300", "0.550┤"), ()),
        ("1", one(loss_curve=INFINITE, value_curve=INFINITE[:1])[0], ("round 42/200",), ()),
        ("1", one(value_curve=NOISE, metric="error")[0], ("0.956┤",), ()),  # without a bound the axis is that of the values
        ("1", (Reading("n", snapshot(time_s=1000.0), as_of=1001.0),), (), ("no news",)),  # a replay has its own clock
        ("2", one()[0], ("━ pairs of this round –", "…unkno02"), ("its share", "distance")),
        ("2", (), ("–  no member known yet",), (snapshot().name,)),
        (  # distances late in a run have exponents
            "2",
            tuple(Reading(f"node-{n}", full(n, distance=4.9e-3 + n * 1e-4)) for n in range(8)),
            ("(4.9e-03–5.6e-03)",),
            (),
        ),
        ("5", one()[0], ("–  none known yet",), ()),
        (
            "5",
            (Reading("node-0", full(transfers=UNDER_WAY)), *swarm()[1:]),
            ("⇄ exchange with node-2 for 45 s: 12 MB", "⇄ model with node-1 for 1 min 3 s: 43 % of 120 MB"),
            (),
        ),
    ],
)
def test_a_page_shows_its_texts_and_no_others(size, key, readings, present, absent):
    _, (*_, screen) = look([readings], size, keys=(key,), clock=lambda: NOW)
    assert [words for words in present if words not in screen] == []
    assert [words for words in absent if words in screen] == []


@BOTH
def test_noise_of_a_bounded_metric_does_not_look_like_a_cliff(size):
    _, (screen,) = look(one(value_curve=NOISE), size)
    axis = [float(found) for found in re.findall(r"([\d.]+)┤", screen) if 0.85 < float(found) <= 1.0]
    assert max(axis) - min(axis) >= 0.099


@pytest.mark.parametrize(("size", "shown"), [(SMALL, False), (LARGE, True)])
def test_events_are_shown_where_there_is_room(size, shown):
    _, (screen,) = look(one(), size)
    assert ("✗ the engine died; restarting it" in screen) == shown


def test_n_chooses_another_node_in_the_drawing_and_y_copies_the_member_under_the_cursor():
    app, seen = look([swarm()], SMALL, keys=("2", "n", "down", "down", "y"))
    assert "●[node-1]" in seen[2]
    assert "[node-0]" not in seen[2].splitlines()[2]
    assert app.clipboard == IDS[2]


def test_too_many_for_a_circle_are_listed():
    _, (_, screen) = look([tuple(many(40))], LARGE, keys=("2",))
    assert "┄ peer-001, peer-002, peer-038, peer-039" in screen
    assert "members 40" in screen


@BOTH
def test_arrow_keys_choose_an_edge_and_only_its_exchanges_are_shown(size):
    readings = (Reading("node-0", full(transfers=UNDER_WAY)), *swarm()[1:])
    app, seen = look([readings], size, keys=("5", "down", "y", "down", "up", "up"))
    assert rows(seen[1], "4     43 ✓ committed it  2.6 kB 2.7 kB 100 %  96 ms")
    assert "last 24: 15 committed" in seen[1]
    assert "exchanges with node-1" in seen[2]
    assert "last 4: 3 committed" in seen[2]
    assert "model with node-1" in seen[2]
    assert "exchange with node-2" not in seen[2]
    assert app.clipboard == IDS[1]
    assert "exchanges with node-2" in seen[4]
    assert "exchanges with all peers" in seen[6]


def test_an_edge_can_be_clicked_and_tab_goes_to_its_exchanges():
    async def click(pilot, app, seen):
        await pilot.click("#choice", offset=(4, 4))
        await pilot.pause()
        seen.append(screen_text(app))
        await pilot.press("tab")
        assert app.focused.id == "ended"

    _, seen = look([swarm()], SMALL, keys=("5",), then=click)
    assert "exchanges with node-2" in seen[-1]


def test_the_chosen_edge_stays_chosen_when_the_status_changes():
    more = full(transactions=(*full().transactions, *full().transactions[:1]), problem="news")
    polls = [(Reading("me", full()),)] * 5 + [(Reading("me", more),)]
    _, seen = look(polls, LARGE, keys=("5", "down"), then=until("news"))
    assert "exchanges with …bbnode1" in seen[-1]
    assert "last 5: 4 committed" in seen[-1]


@BOTH
def test_names_that_differ_only_in_their_middle_stay_distinct(size):
    readings = tuple(Reading(f"sweep-{number}-of-the-models", full(number)) for number in range(8))
    _, seen = look([readings], size, keys=("5",))
    shown = [line[1:].split("│")[0].split()[1] for line in seen[1].splitlines() if line.startswith("│●")]
    assert len(shown) == len(set(shown)) == 7
