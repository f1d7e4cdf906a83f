"""One edge's exchanges as they end, in words and figures."""

from __future__ import annotations

import pytest

from starling.node.status.snapshot import Transfer
from starling.tui.source import Reading
from tests.harness.snapshots import IDS, full
from tests.harness.tui.looking import BOTH, LARGE, SMALL, look, one, rows, screen_text, swarm, until

pytestmark = pytest.mark.slow


@BOTH
def test_every_exchange_says_its_number_round_outcome_bytes_clip_and_time(size):
    _, (_, screen) = look([swarm()], size, keys=("5",))
    assert rows(screen, "ended", "no.", "round", "outcome", "sent", "recv", "kept", "time")
    assert rows(screen, "4     43 ✓ committed it  2.6 kB 2.7 kB 100 %  96 ms")
    for words in ("✗ aborted", "○ busy", "… timeout", "✓ committed"):
        assert words in screen
    assert "last 24: 15 committed" in screen


@BOTH
def test_the_arrow_keys_choose_an_edge_and_only_its_exchanges_are_shown(size):
    app, seen = look([swarm()], size, keys=("5", "down", "y", "down", "up", "up"))
    assert "exchanges with node-1" in seen[2]
    assert "last 4: 3 committed" in seen[2]
    assert app.clipboard == IDS[1]
    assert "exchanges with node-2" in seen[4]
    assert "exchanges with all peers" in seen[6]


def test_an_edge_can_be_clicked():
    async def click(pilot, app, seen):
        await pilot.click("#choice", offset=(4, 4))
        await pilot.pause()
        seen.append(screen_text(app))

    _, seen = look([swarm()], SMALL, keys=("5",), then=click)
    assert "exchanges with node-2" in seen[-1]


def test_the_chosen_edge_stays_chosen_when_news_come():
    more = full(transactions=(*full().transactions, *full().transactions[:1]), problem="news")
    polls = [(Reading("me", full()),)] * 5 + [(Reading("me", more),)]
    _, seen = look(polls, LARGE, keys=("5", "down"), then=until("news"))
    assert "exchanges with …bbnode1" in seen[-1]
    assert "last 5: 4 committed" in seen[-1]


def test_a_node_that_tells_of_no_exchange_shows_a_dash():
    _, (_, screen) = look(one(), SMALL, keys=("5",))
    assert "–  none known yet" in screen
    assert rows(screen, "● …alive01")


def test_tab_goes_from_the_choice_to_the_exchanges():
    focused = []

    async def ask(pilot, app, seen):
        focused.append(app.focused.id)

    look([swarm()], SMALL, keys=("5", "tab", "home"), then=ask)
    assert focused == ["ended"]


@BOTH
def test_transfers_under_way_are_the_last_lines(size):
    under_way = (
        Transfer(IDS[2], "exchange", 12_000_000, None, 45.0),
        Transfer(IDS[1], "model", 52_000_000, 120_000_000, 63.0),
    )
    readings = (Reading("node-0", full(transfers=under_way)), *swarm()[1:])
    _, seen = look([readings], size, keys=("5", "down"))
    for words in ("⇄ exchange with node-2 for 45 s: 12 MB", "⇄ model with node-1 for 1 min 3 s: 43 % of 120 MB"):
        assert words in seen[1]
    assert "model with node-1" in seen[2]
    assert "exchange with node-2" not in seen[2]


@BOTH
def test_names_that_differ_in_their_middle_alone_are_told_apart(size):
    """Names are of directories: those of a sweep begin and end alike."""
    readings = tuple(Reading(f"sweep-{number}-of-the-models", full(number)) for number in range(8))
    _, seen = look([readings], size, keys=("5",))
    shown = [line[1:].split("│")[0].split()[1] for line in seen[1].splitlines() if line.startswith("│●")]
    assert len(shown) == len(set(shown)) == 7
