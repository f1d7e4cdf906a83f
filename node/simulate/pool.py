"""Worker processes that simulate, and who gets which run. Torch-free: nothing here computes.

A worker holds no state worth saving, so that an interruption kills it. If this process is killed instead, workers see their standard
input close and end by themselves.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Self

from starling.gossip.errors import ConfigError, GossipError
from starling.node.simulate import worker_protocol
from starling.node.simulate.results import Outcome
from starling.node.simulate.sweep import Cell

Show = Callable[[float, str], None]
"""Told the fraction of all runs that is done, and one line."""

_READ_BYTES = 1 << 16


@dataclass(slots=True)
class _Worker:
    """One process. What it writes to standard error is kept for its last words."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    cell: int | None = None
    _rest: bytes = b""

    def say(self, word: worker_protocol.Request) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(worker_protocol.line(word))
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise self._died() from error

    def hear(self) -> list[worker_protocol.Reply]:
        """What has arrived; to be called when something can be read.

        Raises:
            GossipError: it is dead.
        """
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), _READ_BYTES)
        if not data:
            raise self._died()
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [worker_protocol.reply(line) for line in lines]

    def _died(self) -> GossipError:
        code = self.process.wait()
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").strip().splitlines()
        why = (
            f"was killed by signal {-code}, perhaps for want of memory" if code < 0 else f"ended with exit code {code}"
        )
        return GossipError(f"a simulating process {why}{f': {said[-1].strip()}' if said else ''}; try fewer nodes")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # words that it never read
            self.process.stdin.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.close()


@dataclass(slots=True)
class Pool:
    """Runs of a sweep, several at a time. A context manager that leaves no process behind.

    Args:
        cells: what to run.
        jobs: processes at most, >= 1.
        show: told how far it is.
    """

    cells: Sequence[Cell]
    jobs: int
    show: Show
    _workers: list[_Worker] = field(default_factory=list)
    _waiting: deque[int] = field(init=False)
    _rounds: dict[int, int] = field(default_factory=dict)  # done, by cell under way
    _ended: int = 0

    def __post_init__(self) -> None:
        self._waiting = deque(range(len(self.cells)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()

    def check(self) -> None:
        """Let a worker look at all runs before the first begins.

        Raises:
            ConfigError: one of them cannot be had.
            GossipError: the worker died.
        """
        self.show(0.0, "starting")
        first = self._start()
        first.say(worker_protocol.Check(tuple(cell.scenario for cell in self.cells)))
        while not any(isinstance(reply, worker_protocol.Checked) for reply in self._replies()):
            pass

    def run(self) -> Iterator[tuple[int, Outcome]]:
        """(number of the run, its outcome), as they end.

        Raises:
            ConfigError: a task's data cannot be had.
            GossipError: a run failed, or a worker died.
        """
        while len(self._workers) < min(self.jobs, len(self.cells)):
            self._start()
        for worker in self._workers:
            self._next(worker)
        while self._rounds:
            for reply in self._replies():
                match reply:
                    case worker_protocol.Advanced(cell, done, line):
                        self._rounds[cell] = done
                        title = self.cells[cell].title
                        self.show(self._fraction, f"{title}: {line}" if title else line)
                    case worker_protocol.Ended(cell, outcome):
                        self._ended += 1
                        del self._rounds[cell]
                        self._next(next(worker for worker in self._workers if worker.cell == cell))
                        yield cell, outcome
                    case _:
                        raise AssertionError(reply)

    @property
    def _fraction(self) -> float:
        under_way = sum(done / self.cells[cell].scenario.pace.rounds for cell, done in self._rounds.items())
        return (self._ended + under_way) / len(self.cells)

    def _start(self) -> _Worker:
        threads = str(max(cell.scenario.simulate.threads for cell in self.cells))
        errors = tempfile.TemporaryFile()  # noqa: SIM115 — closed with the worker
        process = subprocess.Popen(
            [sys.executable, "-m", "starling.node.simulate"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": threads},
        )  # fmt: skip
        worker = _Worker(process, errors)
        self._workers.append(worker)
        return worker

    def _next(self, worker: _Worker) -> None:
        worker.cell = self._waiting.popleft() if self._waiting else None
        if worker.cell is not None:
            self._rounds[worker.cell] = 0
            worker.say(worker_protocol.Run(worker.cell, self.cells[worker.cell].scenario))

    def _replies(self) -> list[worker_protocol.Reply]:
        """Wait until a worker has said something."""
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                assert worker.process.stdout is not None
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            heard: list[worker_protocol.Reply] = []
            for key, _ in selector.select():
                heard += key.data.hear()
        for reply in heard:
            match reply:
                case worker_protocol.Refused(line):
                    raise ConfigError(line)
                case worker_protocol.Failed(line):
                    raise GossipError(line)
        return heard
