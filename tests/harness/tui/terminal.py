"""A real terminal for the terminal UI: tmux, with a separate server for each."""

import os
import shlex
import subprocess
import time
import uuid
from pathlib import Path

from tests.harness.programs import needs

ROOT = Path(__file__).parents[3]

needs_tmux = needs("tmux")


class Terminal:
    """One separate tmux server with one window.

    Args:
        command: runs in it; the window closes when it ends.
        size: columns and lines.
    """

    def __init__(self, command, size=(80, 24)):
        self.name = f"starling-{uuid.uuid4().hex[:8]}"
        self.run("-f", "/dev/null", "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), "-c", str(ROOT), shlex.join(command))

    def run(self, *arguments):
        # A test worker has the width of its report in the environment, not of this terminal.
        kept = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        # The state directory is unwritable, so no first run is noted and no tour opened.
        environment = {**kept, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color", "XDG_STATE_HOME": os.devnull}
        return subprocess.run(["tmux", "-u", "-L", self.name, *arguments], check=False, capture_output=True, text=True, env=environment)

    def shows(self, words, *, present=True, timeout_s=60.0):
        deadline = time.monotonic() + timeout_s
        while (words in (screen := self.run("capture-pane", "-p").stdout)) != present:
            assert time.monotonic() < deadline, f"{words!r} never {'came' if present else 'went'}:\n{screen}"
            time.sleep(0.1)  # a terminal has no event to wait for
        return screen

    @property
    def alive(self):
        return self.run("list-sessions").returncode == 0

    def press(self, *keys):
        self.run("send-keys", *keys)

    def ends(self, timeout_s=60.0):
        deadline = time.monotonic() + timeout_s
        while self.alive:
            assert time.monotonic() < deadline, self.run("capture-pane", "-p").stdout
            time.sleep(0.05)

    def close(self):
        self.run("kill-server")
