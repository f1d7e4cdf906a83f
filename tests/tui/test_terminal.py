"""The whole program in a real terminal against a real socket."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux"),
]


class Terminal:
    """One tmux server of our own, with one window of 80x24."""

    def __init__(self, command):
        self.name = f"starling-{uuid.uuid4().hex[:8]}"
        self.run("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "-c", str(ROOT), shlex.join(command))

    def run(self, *arguments):
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
        return subprocess.run(
            ["tmux", "-u", "-L", self.name, *arguments], check=False, capture_output=True, text=True, env=environment
        )

    def shows(self, words, *, present=True, timeout_s=20.0):
        deadline = time.monotonic() + timeout_s
        while (words in (screen := self.run("capture-pane", "-p").stdout)) != present:
            assert time.monotonic() < deadline, f"{words!r} never {'came' if present else 'went'}:\n{screen}"
            time.sleep(0.1)  # a terminal has no event to wait for
        return screen

    @property
    def alive(self):
        return self.run("list-sessions").returncode == 0


@contextmanager
def node(run_dir, first_round):
    process = subprocess.Popen([sys.executable, "-m", "tests.tui.fake_node", str(run_dir), str(first_round)], cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_ui_attaches_survives_its_node_and_leaves_the_terminal_clean(tmp_path):
    """Start before the node, see it come, die and come back, read the help, quit."""
    terminal = Terminal([sys.executable, "-m", "tui", str(tmp_path)])
    try:
        terminal.shows("no node is running in")
        with node(tmp_path, 100):
            screen = terminal.shows("round 10")
            assert "● training" in screen
            assert "…alive01" in screen
        terminal.shows("attaching again")
        with node(tmp_path, 150):
            screen = terminal.shows("round 15")
            assert "attaching again" not in screen
            terminal.run("send-keys", "?")
            terminal.shows("not known (never 0)")
            terminal.run("send-keys", "Escape")
            terminal.shows("not known (never 0)", present=False)
            terminal.run("send-keys", "q")
            deadline = time.monotonic() + 10
            while terminal.alive:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        terminal.run("kill-server")


def test_the_ui_imports_neither_torch_nor_trio_nor_libp2p():
    """It must start at once and run where the node's heavy parts do not."""
    program = "import sys, tui.app; print(sorted({'torch', 'trio', 'libp2p', 'gossip', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
