"""The web page's data: the texts of the terminal UI, for any request."""

import json
from pathlib import Path

import msgspec
import pytest

from starling.node.status.check import Check
from starling.node.status.snapshot import Event, Point
from starling.tui.source import Reading
from starling.tui.swarm import Member, Swarm
from starling.tui.text.tour import STOPS
from starling.tui.view import View, labels_of
from starling.tui.web.blocks import curve, graph
from starling.tui.web.pages import PAGES, PageRequest, document, place_of
from tests.harness.snapshots import AGREED, IDS, NOW, bare, snapshot
from tests.harness.tui.looking import CHECKS, StarlingApp, swarm

NOTHING = View(waiting_for="starling-node", now=NOW)


def view(readings, selected=0):
    return View(readings, selected, now=NOW, labels=labels_of(readings))


def told(page, at, verdicts=None, **asked):
    """Return what JavaScript gets."""
    return json.loads(msgspec.json.encode(document(PageRequest(page=page, **asked), at, verdicts)))


def texts(block):
    """Yield every text of a block or document."""
    match block:
        case str():
            return [block]
        case dict():
            return [text for each in block.values() for text in texts(each)]
        case list():
            return [text for each in block for text in texts(each)]
    return []


def test_the_page_has_every_screen_of_the_terminal_ui():
    assert set(PAGES) >= {*StarlingApp.MODES, "help", "doctor", "agreed", "nodes"}
    assert {stop.page for stop in STOPS} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("at", [NOTHING, View((Reading("node-0"),), now=NOW), view((Reading("node-0", bare()),)), view(swarm(8))], ids=str)
def test_every_page_is_served_with_any_data(page, at):
    shown = told(page, at)
    assert shown["page"] == page
    assert shown["blocks"]
    assert (shown["problem"] is None) == (at.snapshot is not None)


def test_pages_have_the_texts_of_the_terminal_ui():
    shown = {page: " ".join(texts(told(page, view(swarm(8), 1))["blocks"])) for page in PAGES}
    for words in ("● training", "helping: 15 exchanges with 7 peers", "pairwise edge tracking", "▓▓▓▓▓▓▓▓▓░ 93 %", "consensus distance"):
        assert words in shown["node"]
    assert "8 (0 gone), 8 attached" in shown["swarm"]
    assert "[node-1]" in shown["swarm"]
    assert "● alive" in shown["peers"]
    assert "node-0" in shown["edge"]
    assert all(f"node-{number}" in shown["nodes"] for number in range(8))
    assert all(words in shown["agreed"] for row in AGREED for words in row)


def test_peers_are_sorted_and_one_is_shown_whole():
    at = view(swarm(8))
    rows = told("peers", at, sort="sent")["blocks"][0]["rows"]
    back = told("peers", at, sort="sent", reverse="1")["blocks"][0]["rows"]
    assert [row["go"] for row in rows] == [row["go"] for row in back][::-1]
    assert [row["cells"][0][0] for row in rows] == [f"node-{number}" for number in range(7, 0, -1)]
    _, details = told("peers", at, peer=IDS[3])["blocks"]
    assert (details["title"], details["rows"][0]) == ("peer node-3", [["id", "dim"], IDS[3]])


def test_events_pass_the_filter_and_the_newest_comes_first():
    events = (Event(time_s=NOW - 2, name="one", text="hello"), Event(time_s=NOW, level="error", name="two", text="broken"))
    at = view((Reading("node-0", snapshot(events=events)), Reading("node-1", snapshot(events=events[:1]))))

    def lines(**asked):
        return [row["cells"][-1][0].strip() for row in told("events", at, **asked)["blocks"][0]["rows"]]

    assert lines() == ["✗ broken", "hello"]
    assert lines(level="errors") == ["✗ broken"]
    assert lines(words="HELL") == ["hello"]
    assert lines(every="1").count("hello") == 2
    assert lines(level="no such level") == lines()


def test_exchanges_are_those_of_the_chosen_peer():
    at = view(swarm(8))
    choice, _, ended = told("edge", at)["blocks"]
    assert ended["title"] == "exchanges with all peers"
    assert [row["chosen"] for row in choice["rows"]].index(True) == 0
    _, _, one = told("edge", at, peer=IDS[2])["blocks"]
    assert one["title"] == "exchanges with node-2"
    assert 0 < len(one["rows"]) < len(ended["rows"])
    assert told("edge", at, peer="nobody")["blocks"][2] == ended


def test_verdicts_of_the_doctor_are_awaited_shown_or_missing():
    at = view(swarm(1))
    assert "… checking" in told("doctor", at)["blocks"][0]["text"]
    rows = told("doctor", at, CHECKS)["blocks"][0]["rows"]
    assert rows[0] == [["✗ port", "bad"], f"{CHECKS[0].found}\n→ {CHECKS[0].todo}"]
    assert told("doctor", at, "it failed")["blocks"][0]["rows"] == [[["!", "bad"], "it failed"]]


def test_unknown_values_in_an_address_get_the_default():
    at = view(swarm(2))
    assert told("no page", at) == told("node", at)
    assert told("peers", at, sort="no column", peer="nobody") == told("peers", at)
    assert (place_of("node-1", ["node-0", "node-1"]), place_of("nobody", ["node-0"]), place_of("", [])) == (1, 0, 0)


def test_control_characters_of_others_do_not_reach_the_page():
    bad = "\x1b[2J\u202e<b>"
    hostile = snapshot(
        name=bad,
        task=bad,
        problem=bad,
        overlay=bad,
        agreed=((bad, bad),),
        method=bad,
        events=(Event(time_s=NOW, name="x", text=bad),),
        peers=tuple(msgspec.structs.replace(each, why=bad, addresses=(bad,), inviter=bad) for each in snapshot().peers),
    )
    at = view((Reading(bad, hostile, run_dir=Path()),))
    for page in PAGES:
        shown = told(page, at, [Check("a", "ok", bad, bad)], peer=hostile.peers[0].peer)
        named = [node.pop("name") for node in shown["nodes"]]  # an address, which the page never shows
        assert named == [bad]
        assert not [text for text in texts(shown) if "\x1b" in text or "\u202e" in text]


def test_a_curve_lies_in_its_box_with_ticks_at_both_ends():
    for points in ([(0, 2.3), (10, 0.1), (20, float("nan")), (30, 0.01)], [(5, 1.0)], [(1, 0.5), (9, 0.5)]):
        block = curve("loss", [Point(at, float(at), value) for at, value in points])
        assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y in block.points)
        assert all(0 <= tick.at <= 1 for tick in (*block.x_ticks, *block.y_ticks))
    assert curve("loss", []).points == ()
    assert curve("accuracy", [Point(0, 0.0, 0.951), Point(1, 1.0, 0.952)], bounded=True).points[0][1] > 0.4


def test_a_pair_of_this_round_is_drawn_once_and_gone_members_not_at_all():
    members = [
        Member(name, name, "alive", "●", "good", False, name == "b", 1, 2, 1)
        if name != "c"
        else Member(name, name, "dead", "✗", "bad", False, False, 1, 2, 1)
        for name in "abcd"
    ]
    drawn = graph("overlay", "", Swarm(tuple(members), edges=(("a", "b"), ("a", "d"), ("c", "d")), links=(("a", "b"),)))
    assert [cell.text for cell in drawn.members] == ["● a", "● b", "● d"]
    assert (drawn.own, drawn.links, drawn.edges) == (1, [(0, 1)], [(0, 2)])
