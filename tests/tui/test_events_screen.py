"""Events: newest at the bottom, filtered by level and words."""

import pytest

from starling.node.status.snapshot import Event
from starling.tui.source import Reading
from tests.harness.snapshots import IDS, NOW, full, snapshot
from tests.harness.tui.looking import BOTH, SMALL, look, one, rows, swarm, until

pytestmark = pytest.mark.slow


def events(number):
    return tuple(Event(NOW - 100 + at, "round_mixed", f"happened {at}") for at in range(number))


def followed(keys):
    more = (Reading("n", snapshot(events=events(41), problem="news")),)
    polls = [(Reading("n", snapshot(events=events(40))),)] * 5 + [more]
    return look(polls, SMALL, keys=("4", *keys), then=until("news"))[1]


@BOTH
def test_the_newest_is_last_and_levels_are_marked_with_signs(size):
    _, (_, screen) = look(one(), size, keys=("4",))
    places = [
        screen.index(words) for words in ("…alive01 joined", "! …quara03 broke the protocol: bad_frame", "✗ the engine died; restarting it")
    ]
    assert places == sorted(places)


def test_l_cycles_through_the_levels():
    _, seen = look(one(), SMALL, keys=("4", "l", "l", "l"))
    titles = ("3 of 3, this node, level all", "2 of 3, this node, level warnings", "1 of 3, this node, level errors", "3 of 3")
    for screen, title in zip(seen[1:], titles, strict=True):
        assert title in screen
    assert "joined" not in seen[2]
    assert "bad_frame" not in seen[3]


def test_a_slash_opens_the_filter_enter_applies_it_and_escape_clears_it():
    _, seen = look(one(), SMALL, keys=("4", "slash", "{peer_fault BROKE}", "enter", "l", "escape"))
    assert "words to filter by" in seen[2]
    assert "events 1 of 3" in seen[3]
    assert "joined" not in seen[4]
    assert "level warnings" in seen[5]  # keys have their usual meaning again
    assert "events 2 of 3" in seen[6]
    assert "BROKE" not in seen[6]


def test_digits_and_q_are_letters_in_the_filter():
    _, seen = look(one(), SMALL, keys=("4", "slash", "{q1t?}"))
    assert "q1t?" in seen[-1]
    assert "[4 Events]" in seen[-1]


def test_a_shows_all_nodes_in_the_order_of_time_with_their_names():
    readings = (
        Reading("node-a", snapshot(events=(Event(NOW - 3, "x", "third"), Event(NOW - 1, "x", "fifth")))),
        Reading("node-b", snapshot(events=(Event(NOW - 4, "x", "second"), Event(NOW - 2, "x", "fourth")))),
    )
    _, seen = look([readings], SMALL, keys=("4", "a", "a"))
    lines = (("b", "second"), ("a", "third"), ("b", "fourth"), ("a", "fifth"))
    order = [seen[2].index(f"node-{node}   {word}") for node, word in lines]
    assert order == sorted(order)
    assert "all nodes" in seen[2]
    assert "second" not in seen[1] + seen[3]


def test_it_follows_the_newest_unless_scrolled_back_and_again_at_the_end():
    seen = followed(["home"])
    assert "happened 39" in seen[1]
    assert "happened 0" in seen[2]
    assert "happened 0" in seen[-1]
    assert "happened 40" in followed(["up", "down", "pageup", "pagedown", "end"])[-1]


def test_peer_ids_are_labelled_except_within_addresses():
    address = (Event(NOW - 1, "listening", f"listening on /ip4/127.0.0.1/tcp/1/p2p/{IDS[0]}"),)
    for readings, words in ((swarm(), "node-1 joined"), ((Reading("node-0", full(events=address)),), f"/p2p/…{IDS[0][-7:]}")):
        _, (_, screen) = look([readings], SMALL, keys=("4",))
        assert rows(screen, words)
