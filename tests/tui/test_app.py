"""The frame of every page: problem, nodes, tabs, global keys, terminals of any size."""

import asyncio
import time

import pytest

from starling.node.status.snapshot import Event, PeerStatus
from starling.tui.app import StarlingApp
from starling.tui.commands import save
from starling.tui.source import Reading
from tests.harness.snapshots import NOW, bare, full, snapshot
from tests.harness.tui.looking import BOTH, LARGE, SMALL, CannedSource, look, one, screen_text, settle, swarm, until

pytestmark = pytest.mark.slow

ALL = "12345"
SCREENS = {"1": "speed and cost", "2": "overlay sticky", "3": "peers 7, by edge", "4": "events 11 of 11", "5": "exchanges with all peers"}
STOPPED = "no node is running in /x; start it with `starling run --dir /x`"
BAD = "evil\x1b[2J[bold]name"


@BOTH
def test_every_page_opens_by_its_number_and_by_its_tab(size):
    async def click(pilot, app, seen):
        for column in (12, 21, 30, 40, 3, 48):
            await pilot.click("#tabs", offset=(column, 0))
            await pilot.pause()
            seen.append(screen_text(app))

    _, seen = look([swarm()], size, keys=("2", "3", "4", "5", "1"), then=click)
    for key, screen in zip("12345123451", [*seen[:6], *seen[6:]], strict=False):
        assert SCREENS[key] in screen
        (tabs,) = (line for line in screen.splitlines() if "1 Node" in line)
        assert f"[{key} " in tabs
        assert tabs.count("[") == 1
    assert "not known (never 0)" in seen[-1] or "KEYS" in seen[-1]


def test_the_footer_names_the_keys_of_every_page():
    _, seen = look([swarm()], SMALL, keys=[*ALL])
    for key, screen in zip(ALL, seen[1:], strict=True):
        own = {"3": ("s sort", "r reverse"), "4": ("/ filter", "l level", "a nodes")}.get(key, ())
        for words in (*own, "q quit", "n node", "t theme", "y copy", "? help", "^p palette"):
            assert words in screen.splitlines()[-1]


PROBLEMS = [
    (one(problem="no member answers")[0][0], "! no member answers"),
    (Reading("node-0", None, STOPPED), f"! {STOPPED}"),
    (None, "! no node in canned yet; waiting for one to start"),
    (one(time_s=NOW - 75)[0][0], "! no news from this node for 1 min 15 s; see its log.jsonl"),
    (
        Reading("node-0", snapshot(state="finished", time_s=NOW - 9), "the node in /x went away"),
        "! this node has ended; its state of 9 s ago is shown",
    ),
    (
        Reading("node-0", snapshot(state="leaving", time_s=NOW - 9), STOPPED, result="left after 3 rounds"),
        "! left after 3 rounds; its state of 9 s ago is shown",
    ),
]


@pytest.mark.parametrize(("reading", "first"), PROBLEMS)
def test_a_problem_is_the_first_line(reading, first):
    _, (screen,) = look([(reading,) if reading else ()], SMALL)
    assert screen.splitlines()[0].strip() == first


@pytest.mark.parametrize(("reading", "first"), [PROBLEMS[0], PROBLEMS[2]])
def test_a_problem_is_the_first_line_of_every_page(reading, first):
    _, seen = look([(reading,) if reading else ()], SMALL, keys=(*ALL, "n", "p", "y", "enter"))
    assert {screen.splitlines()[0].strip() for screen in seen[:6]} == {first}


def test_unknown_figures_are_shown_as_dashes():
    _, seen = look([(Reading("node-0", bare()),)], LARGE, keys=ALL)
    for screen in seen:
        assert "–" in screen
        assert "0.0" not in screen


@pytest.mark.parametrize("key", "15")
def test_a_vanished_node_keeps_its_last_state_with_its_age_and_comes_back_by_itself(key):
    last = full(time_s=NOW - 30)
    polls = [
        (Reading("node-0", full()),),
        *[(Reading("node-0", last, "the node in /x went away"),)] * 4,  # long enough to be seen on a busy machine
        (Reading("node-0", full(problem="it is back")),),
    ]
    _, seen = look(polls, SMALL, keys=(key,), then=until("it is back"))
    assert any("went away (its state of 30 s ago is shown; attaching again)" in " ".join(text.split()) for text in seen)
    assert "went away" not in seen[-1]


def test_n_and_p_walk_through_the_nodes_around_the_end_on_every_page():
    _, seen = look([swarm(3)], SMALL, keys=[*"1nnnp", *"2n", *"3nn", *"4p", *"5n"])
    chosen = [next(number for number in range(3) if f"[node-{number}]" in text.splitlines()[1]) for text in seen]
    assert chosen == [0, 0, 1, 2, 0, 2, 2, 0, 0, 1, 2, 2, 1, 1, 2]
    assert "node 1/3" in seen[0]


def test_the_line_of_nodes_shows_those_around_the_chosen_one():
    readings = tuple(Reading(f"node-{number}", snapshot(problem="alone" if number == 36 else None)) for number in range(40))
    _, seen = look([readings], SMALL, keys=["p"] * 5)
    line = seen[-1].splitlines()[1]
    assert all(words in line for words in ("node 36/40", "[node-35]", "node-36!", "←"))
    assert "node-0 " not in line
    _, seen = look(one(), SMALL, keys=("n", "p"))
    assert all("node 1/1" not in text for text in seen)
    assert "n node" not in seen[0].splitlines()[-1]


@BOTH
def test_the_question_mark_explains_keys_signs_and_words_and_closes_again(size):
    keys = [each for key in ALL for each in (key, "question_mark", "end", "question_mark")]
    _, seen = look([swarm()], size, keys=keys)
    for place, key in enumerate(ALL):
        _, opened, end, closed = seen[1 + 4 * place : 5 + 4 * place]
        assert "quit (the node keeps running)" in opened
        assert "attached nodes that know this member" in end
        assert SCREENS[key] in closed
        assert "attached nodes that know this member" not in closed


@pytest.mark.parametrize("key", ["escape", "q"])
def test_help_closes_without_ending_the_program(key):
    _, seen = look(one(), SMALL, keys=("question_mark", key))
    assert "round 42/200" in seen[2]
    assert "KEYS" not in seen[2]


@pytest.mark.parametrize("key", [ALL[0], ALL[-1]])
def test_q_quits_from_every_page(key):
    app, _ = look(one(), SMALL, keys=(key, "q"))
    assert app.return_code == 0


def test_t_changes_the_theme_and_no_word():
    app, seen = look([swarm()], SMALL, keys=[each for key in ALL for each in (key, "t")])
    assert not app.current_theme.dark
    for place in range(len(ALL)):
        assert seen[1 + 2 * place] == seen[2 + 2 * place]


@pytest.mark.parametrize("key", "14")
def test_y_copies_the_node_s_own_id_and_shows_it_whole(key):
    app, _ = look([swarm()], SMALL, keys=(key, "y"), then=until(full().peer))
    assert app.clipboard == full().peer


def test_the_palette_lists_commands_and_finds_them_by_name():
    _, seen = look([swarm()], LARGE, keys=("ctrl+p",), then=until("copy peer id"))
    for words in ("go to Node", "go to Help", "next node", "theme: dark or light", "quit"):
        assert words in seen[-1]
    assert "replay" not in seen[-1]
    _, seen = look([swarm()], SMALL, keys=("ctrl+p", "{go to sw}", "enter"), then=until("overlay sticky"))
    assert "go to Swarm" in seen[2]


@pytest.mark.parametrize("size", [(20, 24), pytest.param((80, 15), marks=pytest.mark.acceptance), (1, 1)])
def test_a_tiny_terminal_shows_the_most_important_figures(size):
    _, seen = look(one(), size, keys=("2", "3", "4", "5", "question_mark"))
    if size[0] > 1 and size[1] > 5:
        for screen in seen[:-1]:
            words = " ".join(screen.split())
            assert "● training round 42/200 accuracy 0.934 (round 40)" in words
            assert "starling needs 60 x 16" in words


def test_a_terminal_that_grows_shows_everything_again():
    async def resize(pilot, app, seen):
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        seen.append(screen_text(app))

    app, seen = look(one(), (20, 10), then=resize)
    assert "speed and cost" in seen[-1]
    assert "840 in all" in seen[-1]
    app.poll()  # the timer may fire once more after the widgets are gone
    app.draw()


def test_names_from_the_swarm_cannot_write_to_the_terminal():
    named = full(name=BAD, metric=BAD, overlay=BAD, algorithm=BAD, task=BAD, problem=BAD)
    _, seen = look([(Reading(BAD, named), Reading("b", named))], LARGE, keys=ALL)
    for screen in seen:
        assert "\x1b" not in screen
        assert "evil·[2J[bold]name" in screen


HOSTILE = "evil\u202e\u2066\x1b[2J\x9b31m\x07\r\n[bold]\u200b" + "n" * 500


@pytest.mark.parametrize("members", [8, pytest.param(4096, marks=pytest.mark.acceptance)])
def test_records_of_hostile_members_cannot_control_the_terminal(members):
    peers = tuple(
        PeerStatus(peer=f"{HOSTILE[:40]}{number}", state="alive", edge=number < 8, addresses=(HOSTILE,) * 8, inviter=HOSTILE, faults=9)
        for number in range(members)
    )
    happened = tuple(Event(time_s=NOW, name="peer_fault", text=HOSTILE, level="warning") for _ in range(64))
    one = full(peers=peers, members=members, ranks=tuple(it.peer for it in peers), links=(), events=happened)
    began = time.monotonic()
    _, seen = look([(Reading("a", one),)], LARGE, keys=ALL)
    took_s = time.monotonic() - began
    for screen in seen:
        assert not set(screen.replace("\n", "")) & set("\x1b\x9b\x07\r\u202e\u2066\u200b")
        assert max(map(len, screen.splitlines())) <= LARGE[0]
    assert took_s < 60.0  # 6 pages; one with 8 members takes half a second


def test_nothing_is_drawn_while_nothing_changes():
    app = StarlingApp([CannedSource([swarm()])], clock=lambda: NOW)
    drawn = []

    async def rest():
        async with app.run_test(size=LARGE) as pilot:
            for key in ALL:
                await pilot.press(key)
                await settle(pilot, app)
                for widget in app.screen.query("#body *"):
                    widget.refresh = lambda *_, of=widget, **__: drawn.append(of) or of
                drawn.clear()  # the time of opening the page
                app.poll()
                await pilot.pause()
                assert drawn == [], key

    asyncio.run(rest())


@pytest.mark.parametrize(
    ("command", "suffix", "holds"),
    [
        ("screensh", ".svg", ["<svg", "round&#160;42/200"]),
        ("export st", ".json", ['"round":42', '"name":"digits-of-ten"']),
        ("export cu", ".csv", ["curve,round,time_s,value\nloss,0,0.0,2.3\n", "accuracy,40,", "distance,42,42.0,"]),
    ],
)
def test_the_palette_saves_the_screen_the_status_and_the_curves(tmp_path, command, suffix, holds):
    async def saved(pilot, app, seen):
        for _ in range(100):
            if [*tmp_path.glob(f"*{suffix}")]:
                break
            await pilot.pause(0.05)

    keys = ("ctrl+p", f"{{{command}}}", "enter")
    look([(Reading("no/de 0", full()),)], LARGE, keys=keys, then=saved, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("starling-no")
    assert path.suffix == suffix
    assert [words for words in holds if words not in path.read_text()] == []


@pytest.mark.parametrize(("polls", "reason"), [(one(), "cannot be written: No such file"), ([(Reading("n", None),)], "no status is known")])
def test_failed_saves_are_reported(tmp_path, polls, reason):
    keys = ("ctrl+p", "{export st}", "enter")
    _, seen = look(polls, LARGE, keys=keys, then=until(reason.split(":")[0]), folder=tmp_path / "x")
    assert reason.split(":")[-1].strip() in " ".join(seen[-1].split())


def test_a_saved_file_never_replaces_another(tmp_path):
    first, second = (save(tmp_path, "n", ".csv", text, NOW) for text in ("one", "two"))
    assert (first.read_text(), second.read_text()) == ("one", "two")
