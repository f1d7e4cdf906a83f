"""What a person sees and what the keys do, at the two sizes the screen is made for."""

from __future__ import annotations

import asyncio
import time

import pytest

from node.status import PeerStatus
from tests.tui.canned import NOW, bare, screen_text, snapshot
from tui.app import StarlingApp
from tui.source import CannedSource, Reading

pytestmark = pytest.mark.slow

SMALL = (80, 24)
LARGE = (160, 48)
BOTH = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["80x24", "160x48"])


def look(polls, size, keys=(), *, then=None):
    """Show readings, press keys, and return the app and what it shows after each key (first: before any)."""
    source = CannedSource(polls)
    app = StarlingApp([source], clock=lambda: NOW)
    seen = []

    async def person():
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            seen.append(screen_text(app))
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
                seen.append(screen_text(app))
            if then is not None:
                await then(pilot, app, seen)

    asyncio.run(person())
    assert source.closed
    return app, seen


def one(**changes):
    return [(Reading("node-0", snapshot(**changes)),)]


@BOTH
def test_the_first_screen_says_how_the_run_goes(size):
    _, (screen,) = look(one(), size)
    for words in (
        "● training", "round 42/200", "accuracy 0.934 (round 40)", "loss 0.213", "4 members", "digits-of-ten", "…myself9",
        "pet", "sticky", "4,810 parameters", "up 2 min 5 s", "steps 840 (312/s)", "sent 2.4 MB (12 kB/s)",
        "received 2.5 MB (13 kB/s)", "exchanges 80 done, 2 aborted, 1 busy, 3 timed out",
    ):  # fmt: skip
        assert words in screen
    assert "!" not in screen.splitlines()[0]


@BOTH
@pytest.mark.parametrize(
    ("spent", "shown"),
    [({}, "ε –  engine restarts 0"), ({"epsilon": 1.2345, "delta": 1e-5}, "ε 1.234 (δ 1e-05)  engine restarts 0")],
)
def test_what_the_node_s_data_have_cost_stands_beside_the_steps_that_cost_it(size, spent, shown):
    """A volunteer who set a noise sees ε grow; who did not is not told of a privacy that is not there."""
    _, (screen,) = look(one(**spent), size)
    (line,) = (line for line in screen.splitlines() if "steps 840" in line)
    assert f"steps 840 (312/s)  {shown}" in line


@BOTH
def test_curves_have_axes_with_rounds_and_values(size):
    _, (screen,) = look(one(), size)
    rows = screen.splitlines()
    assert "loss 0.140" in screen  # the last point, in the title
    assert any("2.300┤" in row for row in rows)
    axis = next(row for row in rows if "└" in row and "┬" in row)
    below = rows[rows.index(axis) + 1]
    assert below.split()[1] == "0"
    assert "42" in below
    assert "40" in below


@BOTH
def test_the_peer_table_shows_edges_first_and_dashes_for_what_is_unknown(size):
    _, (screen,) = look(one(), size)
    rows = [row for row in screen.splitlines() if "…" in row]
    alive = next(row for row in rows if "● alive" in row)
    unknown = next(row for row in rows if "? suspect" in row)
    quarantined = next(row for row in rows if "! quarantined no" in row)
    for words in ("…alive01", "yes", "41", "12 ms", "1.2 MB", "1.3 MB", "40", "0 s"):
        assert words in alive
    assert unknown.count("–") == 3  # round, round trip, last seen
    assert "12 s" in quarantined
    assert "18.5" in quarantined
    assert rows.index(alive) < rows.index(unknown) < rows.index(quarantined)


@BOTH
def test_the_event_tail_ends_with_the_newest_and_marks_levels_with_signs(size):
    _, (screen,) = look(one(), size)
    assert "! …quara03 broke the protocol: bad_frame" in screen
    assert "✗ the engine died; restarting it" in screen
    assert screen.index("bad_frame") < screen.index("the engine died")


@BOTH
def test_the_footer_names_every_key(size):
    _, (screen,) = look(one(), size)
    last = screen.splitlines()[-1]
    for words in ("q quit", "n next node", "p previous node", "? help"):
        assert words in last


@BOTH
def test_a_problem_is_the_first_line(size):
    _, (screen,) = look(one(problem="no member answers; try `starling peers`"), size)
    assert screen.splitlines()[0].strip() == "! no member answers; try `starling peers`"


@BOTH
def test_a_node_in_its_first_moment_has_dashes_and_no_invented_zeros(size):
    _, (screen,) = look([(Reading("node-0", bare()),)], size)
    for words in ("… starting", "value –", "loss –", "– parameters", "steps 0 (–)", "ε –", "–  nothing measured yet"):
        assert words in screen
    assert "0.0" not in screen


@BOTH
def test_without_a_node_the_screen_says_what_to_start_and_where(size):
    trouble = "no node is running in /x; start it with `starling run --dir /x`"
    _, (screen,) = look([(Reading("node-0", None, trouble),)], size)
    assert screen.splitlines()[0].strip() == f"! {trouble}"
    assert "round –" in screen


@BOTH
def test_an_empty_demo_folder_is_waited_for(size):
    _, (screen,) = look([()], size, keys=())
    assert "no node in canned yet" in screen
    look([()], size, keys=("n", "p"))


def test_news_that_stop_coming_show_their_age():
    """A frozen figure that looks alive is the worst thing a screen can do."""
    _, (screen,) = look(one(time_s=NOW - 75), SMALL)
    assert "said nothing for 1 min 15 s" in screen.splitlines()[0]


def test_a_vanished_node_keeps_its_last_state_with_its_age_and_comes_back_by_itself():
    last = snapshot(time_s=NOW - 30)
    polls = [
        (Reading("node-0", snapshot()),),
        *[(Reading("node-0", last, "the node in /x went away"),)] * 4,  # long enough to be seen on a busy machine
        (Reading("node-0", snapshot(round=43)),),
    ]

    async def wait(pilot, app, seen):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and "round 43/200" not in seen[-1]:
            await pilot.pause(0.1)
            seen.append(screen_text(app))

    _, seen = look(polls, SMALL, then=wait)
    assert any("went away (shown: its state 30 s ago; attaching again)" in " ".join(text.split()) for text in seen)
    assert "round 43/200" in seen[-1]
    assert "went away" not in seen[-1]


def test_a_node_that_ended_in_order_is_not_a_problem():
    ended = Reading("node-0", snapshot(state="finished", time_s=NOW - 9), "the node in /x went away")
    _, (screen,) = look([(ended,)], SMALL)
    assert "this node has ended; shown is its state of 9 s ago" in screen
    assert "✓ finished" in screen


@BOTH
def test_n_and_p_walk_through_the_nodes_around_the_end(size):
    readings = tuple(Reading(f"node-{number}", snapshot(round=100 + number)) for number in range(3))
    _, seen = look([readings], size, keys=("n", "n", "n", "p"))
    assert [next(f"{number}" for number in range(3) if f"[node-{number}]" in text) for text in seen] == list("01202")
    assert all(f"round {100 + number}/200" in text for number, text in zip((0, 1, 2, 0, 2), seen, strict=True))
    assert "node 1/3" in seen[0]


def test_many_nodes_fit_the_line_around_the_chosen_one_and_trouble_is_marked():
    readings = tuple(
        Reading(f"node-{number}", snapshot(problem="alone" if number == 36 else None)) for number in range(40)
    )
    _, seen = look([readings], SMALL, keys=["p"] * 5)
    line = seen[-1].splitlines()[0]
    assert "node 36/40" in line
    assert "[node-35]" in line
    assert "node-36!" in line
    assert "←" in line
    assert "node-0 " not in line


def test_a_single_node_needs_no_selector():
    _, seen = look(one(), SMALL, keys=("n", "p"))
    assert all("node 1/1" not in text for text in seen)


@BOTH
def test_the_question_mark_explains_keys_and_signs_and_closes_again(size):
    _, seen = look(one(), size, keys=("question_mark", "question_mark"))
    for words in (
        "quit (the node goes on)",
        "next and previous node",
        "suspected, banned",
        "not known (never 0)",
        "docs/privacy.md",
    ):
        assert words in seen[1]
        assert words not in seen[2]


@pytest.mark.parametrize("key", ["escape", "q"])
def test_help_closes_without_ending_the_program(key):
    _, seen = look(one(), SMALL, keys=("question_mark", key))
    assert "round 42/200" in seen[2]
    assert "suspected, banned" not in seen[2]


def test_q_quits():
    source = CannedSource(one())
    app = StarlingApp([source], clock=lambda: NOW)

    async def press():
        async with app.run_test(size=SMALL) as pilot:
            await pilot.press("q")

    asyncio.run(press())
    assert app.return_code == 0
    assert source.closed


def test_a_poll_that_comes_while_the_screen_is_taken_down_draws_nothing():
    """The timer outlives the widgets by a moment; quitting must not end in a traceback."""
    app, _ = look(one(), SMALL)
    app._poll()


def test_who_has_yet_to_prove_itself_is_told_apart_by_more_than_a_color():
    """A volunteer sees at a glance whom the node knows well."""
    peers = (
        PeerStatus(peer="stranger-1", state="alive"),
        PeerStatus(peer="friendly-2", state="alive", trusted=True),
        PeerStatus(peer="regular-03", state="alive", standing="active"),
    )
    _, (screen,) = look(one(peers=peers), SMALL)
    shown = [line for line in screen.splitlines() if "○ probation" in line]
    assert len(shown) == 1
    assert "…anger-1" in shown[0]
    assert screen.count("● alive") == 2


def test_the_arrow_keys_scroll_the_peers_and_news_do_not_scroll_them_back():
    def peers(round):
        return tuple(PeerStatus(peer=f"peer-{number:02}", state="alive", round=round) for number in range(40))

    polls = [(Reading("node-0", snapshot(peers=peers(1))),)] * 3 + [(Reading("node-0", snapshot(peers=peers(77))),)]

    async def wait(pilot, app, seen):
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and "77" not in seen[-1]:
            await pilot.pause(0.1)
            seen.append(screen_text(app))

    _, seen = look(polls, SMALL, keys=["down"] * 6, then=wait)
    assert "peer-00" in seen[0]
    assert "peer-06" in seen[-1]
    assert "77" in seen[-1]
    assert "peer-00" not in seen[-1]


def test_thousands_of_peers_are_counted_and_some_of_them_shown():
    peers = tuple(PeerStatus(peer=f"peer-{number}", state="alive") for number in range(3000))
    _, (screen,) = look(one(peers=peers), SMALL)
    assert "peers 3,000, 200 shown" in screen


def test_a_name_from_the_swarm_cannot_write_to_the_terminal():
    """The swarm's name comes from a stranger's manifest."""
    _, (screen,) = look(one(name="evil\x1b[2J[bold]name"), SMALL)
    assert "\x1b" not in screen
    assert "evil·[2J[bold]name" in screen


def test_one_point_and_a_constant_curve_can_be_drawn():
    point = snapshot().loss_curve[:1]
    flat = tuple(type(each)(each.round, each.time_s, 0.5) for each in snapshot().value_curve)
    _, (screen,) = look(one(loss_curve=point, value_curve=flat), SMALL)
    assert "loss 2.300" in screen
    assert "0.500┤" in screen
