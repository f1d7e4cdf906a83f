"""Peers: state and figures in a chosen order, and the details of one of them."""

import pytest

from starling.node.status.snapshot import PeerStatus
from starling.tui.screens.peers import BY_NAME
from starling.tui.source import Reading
from tests.harness.snapshots import IDS, full
from tests.harness.tui.looking import BOTH, LARGE, SMALL, look, one, rows, screen_text, swarm, until

pytestmark = pytest.mark.slow


def names(screen):
    return [line.split()[0].lstrip("│") for line in screen.splitlines() if line.startswith(("│…", "│node-"))]


def alone():
    return [(Reading("me", full()),)]


def peers(*numbers, sent=0):
    return tuple(PeerStatus(peer=f"peer-{number:02}", state="alive", bytes_sent=sent) for number in numbers)


def clicked(*offsets):
    async def click(pilot, app, seen):
        for offset in offsets:
            await pilot.click("#peers", offset=offset)
            await pilot.pause()
            seen.append(screen_text(app))

    return look(alone(), SMALL, keys=("3",), then=click)[1]


@BOTH
def test_the_table_shows_edges_first_and_dashes_for_unknown_figures(size):
    _, (_, screen) = look(one(), size, keys=("3",))
    ((alive,), (unknown,), (shut_out,)) = (rows(screen, sign) for sign in ("● alive", "? suspect", "! quarantined"))
    for words in ("…alive01", "active", "12 ms", "1.2 MB", "1.3 MB", "yes"):
        assert words in alive
    assert unknown.count("–") >= 2  # staleness, round trip
    assert "18.5" in shut_out
    lines = screen.splitlines()
    assert lines.index(alive) < lines.index(unknown) < lines.index(shut_out)
    assert "exchanges 80 done, 2 aborted, 1 busy, 3 timed out" in screen
    assert names(look([swarm(3)], size, keys=("3",))[1][1]) == ["node-1", "node-2"]


def test_s_sorts_by_every_column_in_turn_and_r_reverses_the_order():
    _, seen = look(alone(), LARGE, keys=("3", *["s"] * len(BY_NAME), "r"))
    first = [*BY_NAME].index("edge")
    in_turn = [*BY_NAME][first:] + [*BY_NAME][:first]
    for name, screen in zip(in_turn, seen[1:], strict=False):
        assert f", by {name} " in screen
        assert [each for each in BY_NAME if f"{each} ▲" in screen or f"{each} ▼" in screen] == [name]
    assert ("edge ▼" in seen[1], "edge ▲" in seen[-1]) == (True, True)
    orders = [names(screen) for screen in seen[1:]]
    by = dict(zip(in_turn, orders, strict=False))
    assert by["sent"] == by["rtt"] == [f"…{IDS[number][-7:]}" for number in range(7, 0, -1)]
    assert by["last seen"] == by["sent"][::-1]
    assert orders[-2] == orders[0]
    assert orders[-1] == orders[0][::-1]


def test_a_click_on_a_column_sorts_by_it_and_one_on_the_chosen_row_opens_it():
    seen = clicked((49, 1), (49, 1))
    assert ", by score " in seen[-2]
    assert ", by score reversed" in seen[-1]
    assert "round trip" in clicked((5, 2))[-1]


@BOTH
@pytest.mark.parametrize("close", ["escape", "enter", "q"])
def test_enter_shows_all_figures_of_a_peer_and_y_copies_its_whole_id(size, close):
    app, seen = look(alone(), size, keys=("3", "down", "enter", "y", close))
    second = next(peer.peer for peer in full().peers if f"…{peer.peer[-7:]}" == names(seen[1])[1])
    for words in (second, "standing", "invited by", "/ip4/127.0.0.1/tcp/400", "round trip", "contribution"):
        assert words in seen[3]
    assert app.clipboard == second
    assert "round trip" not in seen[5]
    assert "peers 7, by edge" in seen[5]


def test_y_copies_the_peer_under_the_cursor():
    app, seen = look(alone(), SMALL, keys=("3", "down", "down", "y"), then=until("copied"))
    assert f"…{app.clipboard[-7:]}" == names(seen[1])[2]


def test_a_peer_on_probation_is_marked_by_a_sign_and_a_word():
    known = (
        PeerStatus(peer="stranger-1", state="alive"),
        PeerStatus(peer="friendly-2", state="alive", trusted=True),
        PeerStatus(peer="regular-03", state="alive", standing="active"),
    )
    _, (_, screen) = look(one(peers=known), SMALL, keys=("3",))
    (shown,) = rows(screen, "○ probation")
    assert "stranger-1" in shown
    assert screen.count("● alive") == 2


def test_a_new_status_does_not_scroll_the_table():
    polls = [one(peers=peers(*range(40), sent=1))[0]] * 20 + one(peers=peers(*range(40), sent=77))
    _, seen = look(polls, SMALL, keys=["3", *["down"] * 22], then=until("77 B"))
    assert "peer-00" in seen[1]
    assert "peer-22" in seen[-1]
    assert "peer-00" not in seen[-1]


def test_the_cursor_follows_its_peer_when_others_come():
    polls = [one(peers=peers(*range(5, 9)))[0]] * 20 + one(peers=peers(*range(9)))

    async def copy(pilot, app, seen):
        await until("peer-00")(pilot, app, seen)
        await pilot.press("y")

    app, _ = look(polls, SMALL, keys=("3", "down"), then=copy)
    assert app.clipboard == "peer-06"


def test_tables_of_thousands_of_peers_are_cut():
    _, (_, screen) = look(one(peers=peers(*range(3000))), SMALL, keys=("3",))
    assert "peers 3,000, 200 shown" in screen


@BOTH
@pytest.mark.parametrize(
    "ids",
    [
        [f"12D3KooW{'x' * 36}{end}strange" for end in "abcdef"],  # ids with equal ends, as an attacker can find them
        [f"12D3KooW{'x' * number}y" for number in range(20, 26)],
        [f"{'x' * 20}{middle}{'y' * 20}" for middle in "abcdef"],
        ["evil\x1b", "evil\x07", "evil·", "evil\n", "evil", " evil"],  # equal after control characters are removed
    ],
)
def test_no_two_peers_look_alike_for_any_ids(size, ids):
    known = tuple(PeerStatus(peer=each, state="alive", standing="active") for each in ids)
    _, (_, screen) = look(one(peers=known), size, keys=("3",))
    shown = [line.partition("●")[0] for line in rows(screen, "● alive")]
    assert len(shown) == len(set(shown)) == len(ids)
