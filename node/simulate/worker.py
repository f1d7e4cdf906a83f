"""Functions that an executor runs: a simulation, or the checks that need torch. Torch-free until called, so that the submitter stays so.

In a process of `starling.node.simulate.executors.Processes` progress goes through the pipe that `initialise` was given.
"""

import importlib
import os
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from starling.gossip.errors import ConfigError, GossipError
from starling.node.simulate.results import Outcome, Progress
from starling.node.simulate.schema import Scenario

_PAUSE_S = 0.1  # seconds between two reports of one run


class Link(Protocol):
    """One end of a pipe of `multiprocessing`, whose class depends on the system."""

    def poll(self, timeout: float | None = 0.0, /) -> bool: ...
    def send(self, what: Any, /) -> None: ...
    def recv(self) -> Any: ...
    def close(self) -> None: ...


_link: list[Link] = []  # this process's pipe, set once by `initialise`


class Failure(msgspec.Struct, frozen=True):
    """The reason why a run has no outcome."""

    reason: str  # one line
    config: bool = False  # the settings are to blame, as a ConfigError is

    def error(self) -> GossipError:
        """Return the failure as an exception."""
        return ConfigError(self.reason) if self.config else GossipError(self.reason)


def initialise(link: Link, threads: int) -> None:
    """Prepare a worker process, with `threads` threads of numeric libraries.

    It sends (run number, rounds done, one line) to `link`, and ends at once when the other end is closed, even while computing.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)  # read when torch is imported, which has not happened yet
    os.dup2(2, 1)  # a library that prints must not write into the output of the command
    _link.append(link)
    threading.Thread(target=_end_with, args=(link,), daemon=True).start()


def _end_with(link: Link) -> None:
    link.poll(None)  # workers receive nothing: readable means closed
    os._exit(1)


def check(scenarios: Sequence[Scenario]) -> Failure | None:
    """Check all runs, as far as that needs torch; return the first reason why one cannot be run, else None."""
    failures = (_guarded("check", scenario) for scenario in scenarios)
    return next((failure for failure in failures if failure is not None), None)


def run(number: int, scenario: Scenario, report: Progress | None = None) -> Outcome | Failure:
    """Do one run of a checked scenario without a sweep; `number` is its place in the sweep, for progress.

    Progress goes to `report` after every round, or else through the pipe of this process, if it has one.
    """
    outcome: Outcome | Failure = _guarded("simulate", scenario, report or _throttled(number))
    return outcome


def _guarded(name: str, *arguments: object) -> Any:
    """Return the result of a function of `engines`, or its failure: exceptions of many types do not survive pickling."""
    try:
        return getattr(importlib.import_module("starling.node.simulate.engines"), name)(*arguments)  # imports torch
    except GossipError as error:
        return Failure(str(error), isinstance(error, ConfigError))
    except Exception as error:  # noqa: BLE001 — a run is reported as failed, the others go on
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        return Failure(" ".join(f"{type(error).__name__}: {error} ({where})".split()))


def _throttled(number: int) -> Progress:
    """Progress of one run through this process's pipe, sent ten times a second at most."""
    next_s = 0.0

    def report(round: int, line: str) -> None:
        nonlocal next_s
        if _link and time.monotonic() >= next_s:
            next_s = time.monotonic() + _PAUSE_S
            _link[0].send((number, round, line))

    return report
