"""Peers: how they stand, in an order one chooses, and everything about one of them."""

from __future__ import annotations

import pytest

from starling.node.status.snapshot import PeerStatus
from starling.tui.screens.peers import BY_NAME, COLUMNS
from starling.tui.source import Reading
from tests.harness.snapshots import IDS, full, snapshot
from tests.harness.tui.looking import BOTH, LARGE, SMALL, look, one, rows, screen_text, swarm, until

pytestmark = pytest.mark.slow


def names(screen):
    """Of the rows, in their order."""
    return [line.split()[0].lstrip("│") for line in screen.splitlines() if line.startswith(("│…", "│node-"))]


def alone(**changes):
    return [(Reading("me", full(**changes)),)]


@BOTH
def test_the_table_shows_edges_first_and_dashes_for_what_is_unknown(size):
    _, (_, screen) = look(one(), size, keys=("3",))
    (alive,), (unknown,), (shut_out,) = (
        rows(screen, "● alive"),
        rows(screen, "? suspect"),
        rows(screen, "! quarantined"),
    )
    for words in ("…alive01", "active", "12 ms", "1.2 MB", "1.3 MB", "yes"):
        assert words in alive
    assert unknown.count("–") >= 2  # staleness, round trip
    assert "18.5" in shut_out
    lines = screen.splitlines()
    assert lines.index(alive) < lines.index(unknown) < lines.index(shut_out)
    assert "exchanges 80 done, 2 aborted, 1 busy, 3 timed out" in screen


def test_a_wide_terminal_shows_every_column():
    _, (_, screen) = look([swarm()], LARGE, keys=("3",))
    (header,) = rows(screen, "standing", "score")
    for column in COLUMNS:
        assert column.name in header


def test_peers_we_look_at_too_go_by_the_name_of_their_node():
    _, (_, screen) = look([swarm(3)], SMALL, keys=("3",))
    assert names(screen) == ["node-1", "node-2"]


def test_s_sorts_by_every_column_in_turn_and_r_turns_the_order_around():
    _, seen = look(alone(), LARGE, keys=("3", *["s"] * len(BY_NAME), "r"))
    first = [*BY_NAME].index("edge")
    in_turn = [*BY_NAME][first:] + [*BY_NAME][:first]
    for name, screen in zip(in_turn, seen[1:], strict=False):
        assert f", by {name} " in screen
        assert [each for each in BY_NAME if f"{each} ▲" in screen or f"{each} ▼" in screen] == [name]
    assert ("edge ▼" in seen[1], "edge ▲" in seen[-1]) == (True, True)
    orders = [names(screen) for screen in seen[1:]]
    by = dict(zip(in_turn, orders, strict=False))
    assert by["sent"] == [f"…{IDS[number][-7:]}" for number in range(7, 0, -1)]
    assert by["rtt"] == by["sent"]
    assert by["last seen"] == by["sent"][::-1]
    assert orders[-2] == orders[0]  # all the way around
    assert orders[-1] == orders[0][::-1]


def test_a_click_on_a_column_sorts_by_it_and_a_second_one_turns_it():
    async def click(pilot, app, seen):
        for _ in range(2):
            await pilot.click("#peers", offset=(42, 1))
            await pilot.pause()
            seen.append(screen_text(app))

    _, seen = look(alone(), SMALL, keys=("3",), then=click)
    assert ", by score " in seen[-2]
    assert ", by score reversed" in seen[-1]


@BOTH
@pytest.mark.parametrize("close", ["escape", "enter", "q"])
def test_enter_tells_everything_about_a_peer_with_its_whole_id_to_copy(size, close):
    app, seen = look(alone(), size, keys=("3", "down", "enter", "y", close))
    second = next(peer.peer for peer in full().peers if f"…{peer.peer[-7:]}" == names(seen[1])[1])
    for words in (second, "standing", "invited by", "/ip4/127.0.0.1/tcp/400", "round trip", "contribution"):
        assert words in seen[3]
    assert app.clipboard == second
    assert "round trip" not in seen[5]
    assert "peers 7, by edge" in seen[5]


def test_a_click_on_the_row_under_the_cursor_opens_it_too():
    async def click(pilot, app, seen):
        await pilot.click("#peers", offset=(5, 2))
        await pilot.pause()
        seen.append(screen_text(app))

    _, seen = look(alone(), SMALL, keys=("3",), then=click)
    assert "round trip" in seen[-1]


def test_y_copies_the_peer_under_the_cursor():
    app, seen = look(alone(), SMALL, keys=("3", "down", "down", "y"), then=until("copied"))
    assert f"…{app.clipboard[-7:]}" == names(seen[1])[2]


def test_who_has_yet_to_prove_itself_is_told_apart_by_more_than_a_color():
    """A volunteer sees at a glance whom the node knows well."""
    peers = (
        PeerStatus(peer="stranger-1", state="alive"),
        PeerStatus(peer="friendly-2", state="alive", trusted=True),
        PeerStatus(peer="regular-03", state="alive", standing="active"),
    )
    _, (_, screen) = look(one(peers=peers), SMALL, keys=("3",))
    (shown,) = rows(screen, "○ probation")
    assert "stranger-1" in shown
    assert screen.count("● alive") == 2


def test_the_arrow_keys_scroll_and_news_do_not_scroll_them_back():
    def peers(round):
        return tuple(PeerStatus(peer=f"peer-{number:02}", state="alive", bytes_sent=round) for number in range(40))

    polls = [(Reading("node-0", snapshot(peers=peers(1))),)] * 3 + [(Reading("node-0", snapshot(peers=peers(77))),)]
    _, seen = look(polls, SMALL, keys=["3", *["down"] * 22], then=until("77 B"))
    assert "peer-00" in seen[1]
    assert "peer-22" in seen[-1]
    assert "peer-00" not in seen[-1]


def test_the_cursor_follows_its_peer_when_others_come_and_go():
    def peers(first):
        return tuple(PeerStatus(peer=f"peer-{number:02}", state="alive") for number in range(first, 9))

    polls = [(Reading("n", snapshot(peers=peers(5))),)] * 4 + [(Reading("n", snapshot(peers=peers(0))),)]
    app, _ = look(polls, SMALL, keys=("3", "down"), then=until("peer-00"))

    async def copy(pilot, app, seen):
        await until("peer-00")(pilot, app, seen)
        await pilot.press("y")

    app, _ = look(polls, SMALL, keys=("3", "down"), then=copy)
    assert app.clipboard == "peer-06"


def test_thousands_of_peers_are_counted_and_some_of_them_shown():
    peers = tuple(PeerStatus(peer=f"peer-{number}", state="alive") for number in range(3000))
    _, (_, screen) = look(one(peers=peers), SMALL, keys=("3",))
    assert "peers 3,000, 200 shown" in screen


@BOTH
@pytest.mark.parametrize(
    "ids",
    [
        [f"12D3KooW{'x' * 36}{end}strange" for end in "abcdef"],  # ground until their ends agree
        [f"12D3KooW{'x' * number}y" for number in range(20, 26)],
        [f"{'x' * 20}{middle}{'y' * 20}" for middle in "abcdef"],
        ["evil\x1b", "evil\x07", "evil·", "evil\n", "evil", " evil"],  # alike once they are safe to show
    ],
)
def test_no_two_peers_look_alike_however_their_ids_are_chosen(size, ids):
    peers = tuple(PeerStatus(peer=each, state="alive", standing="active") for each in ids)
    _, (_, screen) = look(one(peers=peers), size, keys=("3",))
    shown = [line.partition("●")[0] for line in rows(screen, "● alive")]
    assert len(shown) == len(set(shown)) == len(ids)
