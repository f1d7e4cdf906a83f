"""What an executor runs: one simulation, or the checks that need torch. Torch-free until called, so that whoever submits stays so.

In a process of `starling.node.simulate.executors.Processes` progress goes through the pipe that `initialise` was given.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from starling.gossip.errors import ConfigError, GossipError
from starling.node.simulate.results import Outcome
from starling.node.simulate.schema import Scenario

_PAUSE_S = 0.1  # between two reports of one run
_ENGINES = "starling.node.simulate.engines"  # imports torch
_link: list[Connection] = []  # of this process, set once by `initialise`


class Failure(msgspec.Struct, frozen=True):
    """Why a run has no outcome.

    Args:
        reason: one line.
        config: the settings are to blame, as a ConfigError is.
    """

    reason: str
    config: bool = False

    def error(self) -> GossipError:
        """As an exception."""
        return ConfigError(self.reason) if self.config else GossipError(self.reason)


def initialise(link: Connection, threads: int) -> None:
    """Prepare a worker process. It ends at once when the other end of `link` is closed, whatever it is computing.

    Args:
        link: duplex; (run number, rounds done, one line) is sent.
        threads: of numeric libraries.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)  # read when torch is imported, which has not happened yet
    os.dup2(2, 1)  # a library that prints must not write into the output of the command
    _link.append(link)
    threading.Thread(target=_end_with, args=(link,), daemon=True).start()


def _end_with(link: Connection) -> None:
    link.poll(None)  # nothing is ever sent to a worker: readable means closed
    os._exit(1)


def check(scenarios: Sequence[Scenario]) -> Failure | None:
    """Whether all runs can be had, as far as needs torch; the first reason why not."""

    def look(engines: Any) -> None:
        for scenario in scenarios:
            engines.check(scenario)

    failure: Failure | None = _guarded(look)
    return failure


def run(number: int, scenario: Scenario, report: Callable[[int, str], None] | None = None) -> Outcome | Failure:
    """One run.

    Args:
        number: of the run, for progress.
        scenario: without a sweep, checked.
        report: called with rounds done and one line after every round; None: the pipe of this process, if it has one.
    """
    if report is None:
        report = _Throttled(number, _link[0]) if _link else _silent
    outcome: Outcome | Failure = _guarded(lambda engines: engines.simulate(scenario, report))
    return outcome


def _guarded(work: Callable[[Any], Any]) -> Any:
    """The work's result, or its failure: exceptions of many types do not survive pickling."""
    try:
        return work(importlib.import_module(_ENGINES))
    except GossipError as error:
        return Failure(str(error), isinstance(error, ConfigError))
    except Exception as error:  # noqa: BLE001 — a run is reported as failed, the others go on
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(frame.filename)}:{frame.lineno}"  # noqa: PTH119 — a name, not a path
        return Failure(" ".join(f"{type(error).__name__}: {error} ({where})".split()))


def _silent(round: int, line: str) -> None:
    """No progress."""


class _Throttled:
    """Progress of one run, sent ten times a second at most."""

    def __init__(self, number: int, link: Connection) -> None:
        self._number = number
        self._link = link
        self._next_s = 0.0

    def __call__(self, round: int, line: str) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _PAUSE_S
            self._link.send((self._number, round, line))
