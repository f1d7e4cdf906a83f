"""The whole program in a real terminal, with a real socket and with a recorded run."""

import subprocess
import sys
from contextlib import closing

import pytest

from tests.harness.records import recorded
from tests.harness.tui.fake_node import node
from tests.harness.tui.terminal import ROOT, Terminal, needs_tmux

pytestmark = [pytest.mark.real, pytest.mark.slow, needs_tmux]

SIZES = pytest.mark.parametrize("size", [(80, 24), (160, 48)], ids=["80x24", "160x48"])


def ui(*paths, size=(80, 24)):
    return closing(Terminal([sys.executable, "-m", "starling.tui", *map(str, paths)], size))


@SIZES
def test_the_ui_attaches_survives_its_node_and_leaves_the_terminal_clean(tmp_path, size):
    with ui(tmp_path, size=size) as terminal:
        terminal.shows("no node is running in")
        with node(tmp_path, 100):
            screen = terminal.shows("round 10")
            assert "● training" in screen
        terminal.shows("attaching again")
        with node(tmp_path, 150):
            terminal.shows("attaching again", present=False)
            terminal.shows("round 15")
            for key, words in (("2", "members"), ("3", "! quarantined"), ("4", "bad_frame"), ("5", "exchanges with"), ("1", "cost")):
                terminal.press(key)
                terminal.shows(words)
            terminal.press("?")
            terminal.shows("quit (the node keeps running)")
            terminal.press("Escape")
            terminal.shows("quit (the node keeps running)", present=False)
            terminal.press("q")
            terminal.ends()


@SIZES
def test_a_recorded_run_is_played_and_moved_along(tmp_path, size):
    runs = [recorded(tmp_path / f"node-{number}" / "record.jsonl", number=number) for number in range(2)]
    with ui(*runs, size=size) as terminal:
        terminal.shows("▶ space")
        terminal.press("Space", "End")
        assert "‖ space  01:40" in terminal.shows("round 100/200")
        terminal.press("Home")
        terminal.shows("round 0/200")
        terminal.press("2", "Right")
        assert "node-1" in terminal.shows("00:02")
        terminal.press("q")
        terminal.ends()


def test_an_invalid_record_is_reported_in_one_line_before_any_screen(tmp_path):
    path = tmp_path / "record.jsonl"
    path.write_text("nothing\n")
    done = subprocess.run([sys.executable, "-m", "starling.tui", str(path)], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("starling: ")
    assert done.stderr.count("\n") == 1


def test_a_thread_that_reads_keys_for_ever_does_not_keep_the_process_alive(tmp_path):
    """After a terminal was closed such a thread once used a whole core for thirteen minutes."""
    stuck = (
        "import asyncio, runpy, sys, threading, time\n"
        "def run(app):\n"
        "    app.close()\n"
        "    threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "asyncio.run = run\n"
        "runpy.run_module('starling.tui', run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", stuck, str(tmp_path)], timeout=30, check=False, cwd=ROOT)
    assert ended.returncode == 0


def test_the_ui_imports_neither_torch_nor_trio_nor_libp2p():
    program = "import sys, starling.tui.app; print(sorted({'torch', 'trio', 'libp2p', 'starling.gossip', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
