"""The terminal UI in real terminals on a running demo: what a user sees, and what that costs."""

import sys
import time
from contextlib import closing

import psutil
import pytest

from tests.harness.processes import status_of, terminals
from tests.harness.tui.terminal import Terminal, needs_tmux

pytestmark = [pytest.mark.real, needs_tmux]

SMALL, LARGE = (80, 24), (160, 48)
PATIENCE_S = 90.0


def ui(folder, size):
    return closing(Terminal([sys.executable, "-m", "starling.tui", str(folder)], size))


@pytest.mark.slow
def test_every_screen_follows_a_demo_with_a_killed_and_restarted_node(tmp_path):
    """Both sizes at once, attached to all nodes; the chosen node is killed."""
    with terminals() as terminal:
        demo = terminal("starling demo --nodes 3 --seconds 600 --kill 1@0.01 --no-tui --dir kept", tmp_path, "demo")
        demo.until(lambda: status_of(tmp_path / "kept" / "node-2"))
        with ui(tmp_path / "kept", SMALL) as small, ui(tmp_path / "kept", LARGE) as large:
            for screen in (small, large):
                screen.press("n")
                screen.shows("[node-1", timeout_s=PATIENCE_S)
            for screen in (small, large):
                screen.shows("attaching again", timeout_s=PATIENCE_S)
            for screen in (small, large):
                screen.shows("attaching again", present=False, timeout_s=PATIENCE_S)
                screen.shows("● training", timeout_s=PATIENCE_S)
                screen.press("2")
                screen.shows("3 (0 gone), 3 attached", timeout_s=PATIENCE_S)
                screen.press("3")
                screen.shows("node-0", timeout_s=PATIENCE_S)
                screen.press("4")
                screen.shows("listening on", timeout_s=PATIENCE_S)
                screen.press("5")
                screen.shows("✓ committed", timeout_s=PATIENCE_S)
            for screen, key in ((small, "q"), (large, "C-c")):
                screen.press(key)
                screen.ends()
        assert demo.ctrl_c() == 130


@pytest.mark.acceptance
@pytest.mark.parametrize("key", "12345")
def test_the_terminal_ui_uses_at_most_three_hundredths_of_a_core(tmp_path, key):
    """Processor time over a minute on a demo of eight nodes, at both sizes."""
    with terminals() as terminal:
        demo = terminal("starling demo --seconds 600 --no-tui --dir kept", tmp_path, "demo")
        demo.until(lambda: (now := status_of(tmp_path / "kept" / "node-7")) and now.round > 2)
        with ui(tmp_path / "kept", SMALL) as small, ui(tmp_path / "kept", LARGE) as large:
            for screen in (small, large):
                screen.shows("● training", timeout_s=PATIENCE_S)
                screen.press(key)
            time.sleep(5)  # the cost of opening does not count
            before = [spent_s(screen) for screen in (small, large)]
            time.sleep(60)
            cores = [(spent_s(screen) - at) / 60 for screen, at in zip((small, large), before, strict=True)]
        assert demo.ctrl_c() == 130
    assert max(cores) <= 0.03, cores


def spent_s(screen):
    """Return the processor seconds of the program in this terminal."""
    shell = psutil.Process(int(screen.run("list-panes", "-F", "#{pane_pid}").stdout))
    times = [each.cpu_times() for each in (shell, *shell.children(recursive=True))]
    return sum(each.user + each.system for each in times)
