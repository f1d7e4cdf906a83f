"""Ctrl-C ends every long-running command within three seconds, with nothing left behind, on a busy machine."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager

import psutil
import pytest

from tests.harness.processes import PROMISE_S, ROOT, lives, status_of, terminals, until
from tests.harness.tui.terminal import Terminal, needs_tmux

pytestmark = [pytest.mark.real, pytest.mark.acceptance]

CREATE = "starling create --example digits --listen /ip4/127.0.0.1/tcp/0 --set pace.rounds=0 --shard 0"
SWEEP = f"starling simulate {ROOT}/examples/simulate-digits.toml --set simulate.nodes=16 --set pace.rounds=100000"


def trains(run_dir, rounds=1):
    return lambda: (now := status_of(run_dir)) is not None and now.round >= rounds


def has_family(size):
    return lambda shell: len(shell.family()) >= size


COMMANDS = {
    # command -> when it is interrupted, and its exit code
    "starling demo --nodes 3 --seconds 600 --no-tui --dir kept": (lambda shell: trains(shell.cwd / "kept" / "node-2")(), 130),
    "starling demo --nodes 4 --seconds 600 --no-tui": (has_family(3), 130),
    f"{CREATE} --dir mine --set pace.quorum=1": (lambda shell: trains(shell.cwd / "mine", 3)(), 0),
    f"{CREATE} --dir mine --set pace.quorum=4": (lambda shell: shell.first_line(), 0),
    f"{SWEEP} --set sweep.seeds=[1,2,3] --jobs 2": (has_family(3), 130),
    "starling web mine": (lambda shell: shell.first_line(), 0),
    "starling logs -f mine": (lambda shell: shell.first_line(), 0),
}


@pytest.fixture
def other_work():
    """Run twice as many computing programs as there are cores."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("other_work")
@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: " ".join(line.replace(f"{ROOT}/", "").split()[1:3]))
def test_ctrl_c_ends_each_command_with_all_its_processes(line, tmp_path):
    """`Shell.ctrl_c` asserts that everything is gone after three seconds."""
    ready, code = COMMANDS[line]
    (tmp_path / "mine").mkdir()
    if line.split()[1] in {"web", "logs"}:
        (tmp_path / "mine" / "node.toml").touch()
        (tmp_path / "mine" / "log.jsonl").write_text('{"time": 0.0, "level": "info", "event": "listening"}\n')
    with terminals() as terminal:
        shell = terminal(line, tmp_path, "it")
        shell.until(lambda: ready(shell))
        assert shell.ctrl_c() == code, shell.err
        assert "Traceback" not in shell.err


@pytest.mark.usefixtures("other_work")
def test_ctrl_c_ends_a_node_that_joined(tmp_path):
    with terminals() as terminal:
        creator = terminal(f"{CREATE} --dir mine --set pace.quorum=2", tmp_path, "creator")
        invite = creator.until(creator.first_line)
        joiner = terminal(f"starling join {invite} --dir theirs --listen /ip4/127.0.0.1/tcp/0 --shard 1", tmp_path, "joiner")
        joiner.until(trains(tmp_path / "theirs"))
        for shell in (joiner, creator):
            assert shell.ctrl_c() == 0, shell.err
            assert "Traceback" not in shell.err


@contextmanager
def ended_in_time(pids):
    """Assert that these processes have ended three seconds after the block at the latest."""
    family, began = [psutil.Process(pid) for pid in pids], time.monotonic()
    yield
    until(f"still there: {family}", lambda: not any(map(lives, family)), PROMISE_S - (time.monotonic() - began))


@needs_tmux
@pytest.mark.usefixtures("other_work")
@pytest.mark.parametrize("by", ["key", signal.SIGINT, signal.SIGTERM], ids=str)
def test_the_terminal_ui_restores_the_terminal(by, tmp_path):
    """The UI reads the key; a signal comes from outside. Later output of the shell must be visible."""
    (tmp_path / "node.toml").touch()
    ui = f"{sys.executable} -m starling tui {tmp_path}"
    with closing(Terminal(["bash", "-c", f"{ui}; stty -a | grep -o '[-]*icanon'; echo code $?; sleep 60"], (120, 40))) as screen:
        screen.shows("no node is running")
        shell = psutil.Process(int(screen.run("list-panes", "-F", "#{pane_pid}").stdout))
        pids = [each.pid for each in shell.children(recursive=True)]
        with ended_in_time(pids):
            if by == "key":
                screen.press("C-c")
            else:
                os.kill(pids[0], by)
        seen = screen.shows("code 0")
        assert "icanon" in seen
        assert "-icanon" not in seen
        assert "Traceback" not in seen
