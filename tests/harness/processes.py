"""`starling` as a user runs it: processes in sessions of their own, observed from outside, all ended afterwards."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from starling.node.status import control
from tests.harness.schemas import valid
from tests.harness.texts import words

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",  # several nodes share this machine
}
PATIENCE_S = 90.0  # time for the slowest machine to start several nodes at once
PROMISE_S = 3.0  # Ctrl-C ends a node, or a demo, within this time


def until(complaint, true: Callable[[], object], patience_s=PATIENCE_S):
    """Return the first truthy answer; processes have no event to wait for."""
    deadline = time.monotonic() + patience_s
    while not (answer := true()):
        assert time.monotonic() < deadline, complaint
        time.sleep(0.05)
    return answer


def starling(*arguments, cwd):
    """Run one command until it ends; return its standard output."""
    command = ["starling", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def bash(line, cwd, timeout_s=120):
    """Run one line as typed until it ends; return its standard output."""
    done = subprocess.run(["bash", "-c", line], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=timeout_s)
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


def lives(process):
    """Return whether a process runs. A zombie has ended: nobody reaps orphans in a container without an init."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until_ended(pid, patience_s):
    """Wait until the process of this number has ended."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        until(f"still there: {process}", lambda: not lives(process), patience_s)


class Shell:
    """One command in its own terminal, with its output in files.

    Args:
        line: as typed.
        cwd: its folder.
        name: of the two files.
    """

    def __init__(self, line, cwd, name):
        self.cwd = cwd
        self._out, self._err = cwd / f"{name}.out", cwd / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=cwd,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def out(self):
        return self._out.read_text()

    @property
    def err(self):
        return self._err.read_text()

    def until(self, true: Callable[[], object]):
        """Return the first truthy answer, while the command runs."""
        deadline = time.monotonic() + PATIENCE_S
        while not (answer := true()):
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.err}"
            assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {self.err}"
            time.sleep(0.05)
        return answer

    def first_line(self):
        """Return its first line of output once complete; "" before."""
        line, end, _ = self.out.partition("\n")
        return line if end else ""

    def family(self):
        """Return its process and all descendants."""
        me = psutil.Process(self.process.pid)
        return [me, *me.children(recursive=True)]

    def ctrl_c(self):
        """Send SIGINT to the process group, as a terminal does; return the exit code. Nothing of it may live after three seconds."""
        family, began = self.family(), time.monotonic()
        os.killpg(self.process.pid, signal.SIGINT)
        code = self.process.wait(PATIENCE_S)
        until(f"still there after {PROMISE_S:.0f} s: {family}", lambda: not any(map(lives, family)), PROMISE_S)
        took = time.monotonic() - began
        assert took <= PROMISE_S, f"Ctrl-C took {took:.1f} s: {self.err}"
        return code

    def kill(self):
        """SIGKILL it alone, as an out-of-memory killer would; return its descendants."""
        _, *others = self.family()
        self.process.kill()
        self.process.wait()
        return others


@contextmanager
def terminals():
    """Yield a function that opens terminals; everything started in them ends with the block."""
    opened = []

    def open_terminal(line, cwd, name):
        opened.append(Shell(line, cwd, name))
        return opened[-1]

    try:
        yield open_terminal
    finally:
        for shell in opened:
            if shell.process.poll() is None:
                for process in shell.family():
                    process.kill()
                shell.process.wait()


def status_of(run_dir):
    """Return the status of the node in a directory; None while it does not answer."""
    try:
        return control.status(run_dir)
    except control.ControlError:
        return None


ENDLESS = (
    "--set pace.rounds=0 --set optimizer.schedule=constant --set partition.shards=2 --set pace.max_wait_s=1 --set membership.suspicion_s=1"
)


OWN = "--listen /ip4/127.0.0.1/tcp/0 --set checkpoint_s=0.3"


def training(run_dir, beyond=0):
    now = status_of(run_dir)
    return now if now is not None and now.state == "training" and now.round > beyond else None


TABLE = {*words("version swarm wall_s rounds metric mean min max ban consensus_distance bytes_per_exchange dense_bytes nodes alone")}


ROW = {*words("peer state rounds local_steps value bytes_sent bytes_received exchanges rejoined joined_late byzantine")}


def demo(cwd, *arguments):
    """Return the JSON object that a demo prints."""
    command = ["starling", "demo", "--json", "--no-tui", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    table = valid("demo", done.stdout)
    assert set(table) == TABLE
    for row in table["nodes"]:
        assert set(row) == ROW
        assert set(row["exchanges"]) == {"committed", "aborted", "busy", "timeout"}
    return table
