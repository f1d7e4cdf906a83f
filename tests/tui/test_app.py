"""What is around every screen: the problem, the nodes, the tabs, the keys that work everywhere, and terminals of any size."""

from __future__ import annotations

import asyncio

import pytest

from starling.tui.app import StarlingApp
from starling.tui.export import save
from starling.tui.source import Reading
from tests.harness.snapshots import NOW, bare, full, snapshot
from tests.harness.tui.looking import BOTH, LARGE, SMALL, CannedSource, look, one, screen_text, settle, swarm, until

pytestmark = pytest.mark.slow

ALL = "12345"
SCREENS = {
    "1": "speed and cost",
    "2": "overlay sticky",
    "3": "peers 7, by edge",
    "4": "events 11 of 11",
    "5": "exchanges with all peers",
}


def opened(screen):
    return next(line for line in screen.splitlines() if "1 Node" in line)


@BOTH
def test_every_number_opens_its_screen_and_the_tab_says_which(size):
    _, seen = look([swarm()], size, keys=("2", "3", "4", "5", "1"))
    for key, screen in zip("123451", seen, strict=True):
        assert SCREENS[key] in screen
        assert f"[{key} " in opened(screen)
        assert opened(screen).count("[") == 1


@BOTH
def test_tabs_can_be_clicked(size):
    async def click(pilot, app, seen):
        for column in (12, 21, 30, 40, 3, 48):
            await pilot.click("#tabs", offset=(column, 0))
            await pilot.pause()
            seen.append(screen_text(app))

    _, seen = look([swarm()], size, then=click)
    for key, screen in zip("23451", seen[1:], strict=False):
        assert SCREENS[key] in screen
    assert "not known (never 0)" in seen[-1] or "KEYS" in seen[-1]


def test_the_footer_names_the_keys_of_every_screen():
    _, seen = look([swarm()], SMALL, keys=[*ALL])
    for key, screen in zip(ALL, seen[1:], strict=True):
        own = {"3": ("s sort", "r reverse"), "4": ("/ filter", "l level", "a nodes")}.get(key, ())
        for words in (*own, "q quit", "n node", "t theme", "y copy", "? help", "^p palette"):
            assert words in screen.splitlines()[-1]


@BOTH
def test_a_problem_is_the_first_line_of_every_screen(size):
    _, seen = look(one(problem="no member answers; try `starling peers`"), size, keys=ALL)
    for screen in seen:
        assert screen.splitlines()[0].strip() == "! no member answers; try `starling peers`"


def test_a_node_in_its_first_moment_has_dashes_and_no_invented_zeros():
    _, seen = look([(Reading("node-0", bare()),)], LARGE, keys=ALL)
    for screen in seen:
        assert "–" in screen
        assert "0.0" not in screen


def test_without_a_node_every_screen_says_what_to_start_and_where():
    trouble = "no node is running in /x; start it with `starling run --dir /x`"
    _, seen = look([(Reading("node-0", None, trouble),)], SMALL, keys=ALL)
    for screen in seen:
        assert screen.splitlines()[0].strip() == f"! {trouble}"


def test_an_empty_demo_folder_is_waited_for():
    _, (screen, *_) = look([()], SMALL, keys=("2", "3", "4", "5", "n", "p", "y", "enter"))
    assert "no node in canned yet" in screen


def test_news_that_stop_coming_show_their_age():
    """A frozen figure that looks alive is the worst thing a screen can do."""
    _, (screen,) = look(one(time_s=NOW - 75), SMALL)
    assert "no news from this node for 1 min 15 s" in screen.splitlines()[0]


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


def test_a_node_that_ended_in_order_is_not_a_problem():
    ended = Reading("node-0", snapshot(state="finished", time_s=NOW - 9), "the node in /x went away")
    _, (screen,) = look([(ended,)], SMALL)
    assert "this node has ended; its state of 9 s ago is shown" in screen
    assert "✓ finished" in screen


def test_n_and_p_walk_through_the_nodes_around_the_end_on_every_screen():
    _, seen = look([swarm(3)], SMALL, keys=[*"1nnnp", *"2n", *"3nn", *"4p", *"5n"])
    chosen = [next(number for number in range(3) if f"[node-{number}]" in text.splitlines()[1]) for text in seen]
    assert chosen == [0, 0, 1, 2, 0, 2, 2, 0, 0, 1, 2, 2, 1, 1, 2]
    assert "node 1/3" in seen[0]


def test_many_nodes_fit_the_line_around_the_chosen_one_and_trouble_is_marked():
    readings = tuple(
        Reading(f"node-{number}", snapshot(problem="alone" if number == 36 else None)) for number in range(40)
    )
    _, seen = look([readings], SMALL, keys=["p"] * 5)
    line = seen[-1].splitlines()[1]
    assert "node 36/40" in line
    assert "[node-35]" in line
    assert "node-36!" in line
    assert "←" in line
    assert "node-0 " not in line


def test_a_single_node_needs_no_selector():
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


@pytest.mark.parametrize("key", "12345")
def test_q_quits_from_every_screen(key):
    app, _ = look(one(), SMALL, keys=(key, "q"))
    assert app.return_code == 0


def test_t_turns_the_light_on_and_off_and_loses_no_word():
    app, seen = look([swarm()], SMALL, keys=[each for key in ALL for each in (key, "t")])
    assert not app.current_theme.dark
    for place in range(len(ALL)):
        assert seen[1 + 2 * place] == seen[2 + 2 * place]


@pytest.mark.parametrize("key", "14")
def test_y_copies_the_node_s_own_id_where_no_other_is_pointed_at(key):
    # The whole id is also shown, for terminals without a clipboard.
    app, _ = look([swarm()], SMALL, keys=(key, "y"), then=until(full().peer))
    assert app.clipboard == full().peer


def test_the_palette_finds_commands_by_name():
    _, seen = look([swarm()], SMALL, keys=("ctrl+p", "{go to sw}", "enter"), then=until("overlay sticky"))
    assert "go to Swarm" in seen[2]
    assert "replay" not in seen[1]


def test_the_palette_lists_what_can_be_done():
    _, seen = look([swarm()], LARGE, keys=("ctrl+p",), then=until("copy peer id"))
    for words in ("go to Node", "go to Help", "next node", "theme: dark or light", "quit"):
        assert words in seen[-1]


@pytest.mark.parametrize("size", [(20, 24), (80, 15), (1, 1)])
def test_a_tiny_terminal_says_the_most_important_and_what_it_needs(size):
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

    _, seen = look(one(), (20, 10), then=resize)
    assert "speed and cost" in seen[-1]
    assert "840 in all" in seen[-1]


def test_a_poll_that_comes_while_the_screen_is_taken_down_draws_nothing():
    """The timer outlives the widgets by a moment; quitting must not end in a traceback."""
    app, _ = look(one(), SMALL)
    app._poll()
    app.draw()


def test_names_from_the_swarm_cannot_write_to_the_terminal():
    """The swarm's name comes from a stranger's manifest, peer ids and addresses from strangers."""
    bad = "evil\x1b[2J[bold]name"
    told = full(name=bad, metric=bad, overlay=bad, algorithm=bad, task=bad, problem=bad)
    _, seen = look([(Reading(bad, told), Reading("b", told))], LARGE, keys=ALL)
    for screen in seen:
        assert "\x1b" not in screen
        assert "evil·[2J[bold]name" in screen


def test_at_rest_nothing_is_drawn():
    """Whoever looks at a node pays for what changed, and for nothing else."""
    source = CannedSource([swarm()])
    app = StarlingApp([source], clock=lambda: NOW)
    drawn = []

    async def rest():
        async with app.run_test(size=LARGE) as pilot:
            for key in "12345":
                await pilot.press(key)
                await settle(pilot, app)
                for widget in app.screen.query("#body *"):
                    widget.refresh = lambda *_, of=widget, **__: drawn.append(of) or of
                drawn.clear()  # of the way here
                app._poll()
                await pilot.pause()
                assert drawn == [], key

    asyncio.run(rest())


def saved(folder, suffix):
    """Something to do afterwards: wait until such a file is there."""

    async def wait(pilot, app, seen):
        for _ in range(100):
            if [*folder.glob(f"*{suffix}")]:
                break
            await pilot.pause(0.05)

    return wait


@pytest.mark.parametrize(
    ("command", "suffix", "holds"),
    [
        ("screensh", ".svg", ["<svg", "round&#160;42/200"]),
        ("export st", ".json", ['"round":42', '"name":"digits-of-ten"']),
        ("export cu", ".csv", ["curve,round,time_s,value\nloss,0,0.0,2.3\n", "accuracy,40,", "distance,42,42.0,"]),
    ],
)
def test_the_palette_saves_the_screen_the_status_and_the_curves(tmp_path, command, suffix, holds):
    keys = ("ctrl+p", f"{{{command}}}", "enter")
    look([(Reading("no/de 0", full()),)], LARGE, keys=keys, then=saved(tmp_path, suffix), folder=tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("starling-no")
    assert path.suffix == suffix
    for words in holds:
        assert words in path.read_text()


def test_what_cannot_be_saved_is_said_and_nothing_is_overwritten(tmp_path):
    _, seen = look(
        one(), SMALL, keys=("ctrl+p", "{export st}", "enter"), then=until("cannot be"), folder=tmp_path / "x"
    )
    assert "No such file" in " ".join(seen[-1].split())
    first, second = (save(tmp_path, "n", ".csv", text, NOW) for text in ("one", "two"))
    assert (first.read_text(), second.read_text()) == ("one", "two")
    _, seen = look(
        [(Reading("n", None),)], SMALL, keys=("ctrl+p", "{export st}", "enter"), then=until("no status is known")
    )
