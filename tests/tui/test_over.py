"""Dialogs over a page: the list of nodes, the manifest, the doctor, the tour."""

import asyncio
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from starling.node.status.snapshot import Transaction
from starling.tui.doctor import examine
from starling.tui.first_run import first_run
from starling.tui.source import Reading
from starling.tui.text.peers import BY_NAME, LATELY, lately
from starling.tui.text.tour import STOPS
from starling.tui.view import View
from tests.harness.snapshots import AGREED, NOW, snapshot
from tests.harness.tui.looking import CHECKS, SMALL, look, one, swarm

pytestmark = pytest.mark.slow


def test_a_node_is_chosen_from_the_list_of_all():
    _, seen = look([swarm(4)], SMALL, keys=("o", "down", "down", "enter", "o", "escape"))
    assert "4 nodes, enter chooses" in seen[1]
    assert "[node-2]" in seen[4]
    assert "enter chooses" not in seen[4]
    assert "[node-2]" in seen[6]  # closed without choosing


def test_one_node_has_no_list_to_choose_from():
    assert "enter chooses" not in look(one(), SMALL, keys=("o",))[1][1]


def test_the_manifest_is_described_in_words():
    (_, said, closed) = look([swarm(1)], (160, 48), keys=("m", "escape"))[1]
    assert all(name in said and words.partition(",")[0] in said for name, words in AGREED)  # longer ones are folded
    assert "what this swarm agreed on" not in closed
    old = look([swarm(1, method="", agreed=(), algorithm="pet", overlay="sticky")], SMALL, keys=("m",))[1][1]
    assert "pet over sticky" in old
    assert "nothing known yet" in look([(Reading("node-0"),)], SMALL, keys=("m",))[1][1]


def test_the_doctor_is_asked_about_the_chosen_node_and_a_failure_is_shown():
    asked = []

    async def doctor(run_dir):
        asked.append(run_dir)
        if len(asked) > 1:
            raise ValueError("`starling doctor` failed: \x1b[31mno such directory")
        return CHECKS

    _, seen = look([swarm(2)], SMALL, keys=("n", "d", "escape", "p", "d"), examine=doctor)
    assert asked == [Path("node-1"), Path("node-0")]
    assert all(each.check in seen[2] and each.found in seen[2] for each in CHECKS)
    assert "→ choose another" in seen[2]
    assert "! `starling doctor` failed: " in seen[5]
    assert "\x1b" not in seen[5]


def test_the_doctor_is_not_available_for_a_record():
    assert "a record has no machine to check" in look(one(), SMALL, keys=("d",))[1][1]


@pytest.mark.parametrize(
    ("program", "why"), [("print('{}')", "failed: exit status 0"), ("raise SystemExit('! no: directory')", "failed: ! no: directory")]
)
def test_a_doctor_without_verdicts_gives_one_line(program, why):
    with pytest.raises(ValueError, match=why):
        asyncio.run(examine(Path("node-0"), (sys.executable, "-c", program)))


def test_verdicts_are_shown_problems_first_and_the_doctor_is_given_the_directory():
    program = (
        'import sys; print(\'{"checks": [{"check": "a", "verdict": "ok", "found": "%s"}, '
        '{"check": "b", "verdict": "fail", "found": ""}]}\' % sys.argv[1])'
    )
    found = asyncio.run(examine(Path("node-0"), (sys.executable, "-c", program)))
    assert [(each.check, each.found) for each in found] == [("b", ""), ("a", "node-0")]


def test_the_tour_goes_through_the_pages_and_back_and_ends():
    keys = ("question_mark", "enter", "enter", "left", "left", *["enter"] * len(STOPS))
    _, seen = look([swarm(2)], SMALL, keys=keys)
    for number, screen in zip([0, 1, 0, *range(len(STOPS))], seen[2:-1], strict=True):
        assert f"{number + 1} of {len(STOPS)}: {STOPS[number].title}" in screen
        assert f"{STOPS[number].page.capitalize()}]" in screen
    assert f" of {len(STOPS)}: " not in seen[-1]


def test_the_first_run_opens_the_tour_and_later_ones_do_not(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for words in (True, False):
        assert (STOPS[0].title in look([swarm(2)], SMALL, welcome=first_run)[1][0]) == words


def test_q_during_the_tour_ends_the_program():
    running = []

    async def watched(_pilot, app, _seen):
        running.append(app.is_running)

    for keys in ((), ("q",)):
        look([swarm(2)], SMALL, keys=keys, then=watched, welcome=lambda: True)
    assert running == [True, False]


@pytest.mark.parametrize("state", ["/dev/null", "", "not/absolute"])
def test_without_a_writable_state_file_no_tour_is_opened(tmp_path, monkeypatch, state):
    (tmp_path / ".local").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", state)
    assert not first_run()


def test_a_sparkline_shows_the_last_exchanges_with_a_peer():
    """A bar's height is the exchange's duration relative to the longest with any peer."""
    done = [("a", "committed", 1.0), ("a", "busy", 9.0), ("b", "committed", 2.0), ("a", "committed", 2.0), ("a", "committed", None)]
    history = tuple(
        Transaction(
            time_s=NOW, peer=peer, number=at, round=at, outcome=outcome, asked=True, bytes_sent=0, bytes_received=0, seconds=seconds
        )
        for at, (peer, outcome, seconds) in enumerate(done)
    )
    view = View((Reading("node-0", snapshot(transactions=history)),))
    (peer,) = snapshot().peers[:1]
    bars = {name: lately(replace(peer, peer=name), view) for name in "abc"}
    assert bars == {"a": "▅×█▁", "b": "█", "c": ""}
    many = View((Reading("node-0", snapshot(transactions=history[:2] + history[3:4] * LATELY)),))
    assert lately(replace(peer, peer="a"), many) == "█" * LATELY
    failing = sorted("abc", key=lambda name: BY_NAME["lately"].order(replace(peer, peer=name), view))
    assert failing[0] == "a"
