"""Processes that run steps on request throughout a measurement, so that two of them can alternate.

python -m starling.kernels.NAME KEYS       KEYS of a manifest, in JSON; says "ready" and d, then answers lines of standard input:

steps N      do so many
seconds S    do as many as begin in that time
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from starling.gossip.errors import ConfigError, GossipError
from starling.node import platform

Step = Callable[[], object]
Made = Callable[[Mapping[str, Any]], tuple[Step, int]]
"""From keys of a manifest to what does a step, and d."""
USAGE = 2  # exit code if the measurement is impossible


class Spent(msgspec.Struct, frozen=True):
    """Time taken by some steps."""

    steps: int
    cpu_s: float
    wall_s: float
    waited_s: float | None
    """In which the process was ready to run and another had its core; None where the system does not tell."""


class Child:
    """The measuring end of such a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.parameters = 0

    def start(self) -> None:
        """Wait until it is ready. Raises ConfigError: it cannot do that; GossipError: it ended."""
        self.parameters = int(self._line().partition(" ")[2])

    def tell(self, command: str) -> None:
        """Send a line. Raises GossipError: the process ended."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # no answer is possible then
            self.process.stdin.write(f"{command}\n")
            self.process.stdin.flush()

    def answer(self) -> Spent:
        """Return what was spent on the oldest line without an answer. Raises GossipError: the process ended."""
        return msgspec.json.decode(self._line(), type=Spent)

    def run(self, command: str) -> Spent:
        """Send a line and wait for its answer. Raises GossipError: the process ended."""
        self.tell(command)
        return self.answer()

    def _line(self) -> str:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        if line := self.process.stdout.readline():
            return line
        said, code = self.process.stderr.read().strip(), self.process.wait()
        last = said.splitlines()[-1] if said else f"a process ended with {code}; it may need more memory than there is"
        raise (ConfigError if code == USAGE else GossipError)(last)


@contextmanager
def children(*kernels: str, keys: Mapping[str, Any], threads: int = 1, cores: Sequence[set[int] | None] = ()) -> Iterator[list[Child]]:
    """Start a process of each module of `starling.kernels`; all are ready then, and ended on the way out, also after Ctrl-C.

    `cores`: of each, to which it is pinned; None, or left out: any.

    Raises ConfigError: one cannot do that; GossipError: one ended.
    """
    given = msgspec.json.encode(keys).decode()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    started: list[Child] = []
    try:
        for kernel, own in zip_longest(kernels, cores):
            words = [sys.executable, "-m", f"starling.kernels.{kernel}", given]
            process = subprocess.Popen(
                words, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            started.append(Child(process))
            if own:
                platform.keep_to(process.pid, own)  # before threads exist, since they inherit it
        for each in started:
            each.start()
        yield started
    finally:
        for each in started:
            each.process.kill()  # the process has nothing to clean up
        for each in started:
            each.process.communicate()


def main(arguments: Sequence[str], made: Made) -> int:
    """Make what does steps, and serve it -> exit code."""
    try:
        step, d = made(msgspec.json.decode(arguments[0], type=dict[str, Any]))
        print("ready", d, flush=True)
        for line in sys.stdin:
            print(msgspec.json.encode(_spent(step, line)).decode(), flush=True)
    except KeyboardInterrupt:
        return 130
    except ConfigError as error:
        print(error, file=sys.stderr)
        return USAGE
    return 0


def _spent(step: Step, line: str) -> Spent:
    kind, _, amount = line.partition(" ")
    before, cpu, began, done = _waited(), time.process_time(), time.perf_counter(), 0
    most, until = (int(amount), None) if kind == "steps" else (sys.maxsize, began + float(amount))
    while done < most and (until is None or time.perf_counter() < until):
        step()
        done += 1
    spent, wall, after = time.process_time() - cpu, time.perf_counter() - began, _waited()
    return Spent(done, spent, wall, None if before is None or after is None else after - before)


def _waited() -> float | None:
    with suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    return None
