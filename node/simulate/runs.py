"""Run a sweep through an executor and collect its outcomes. Torch-free unless runs are computed in this process."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from starling.gossip.errors import ConfigError, GossipError
from starling.node.simulate import plot, results, worker
from starling.node.simulate.executors import Processes
from starling.node.simulate.results import Finished, Outcome
from starling.node.simulate.schema import Scenario
from starling.node.simulate.sweep import Cell, title
from starling.node.simulate.worker import Failure

Show = Callable[[float, str], None]  # called with the fraction of all rounds that are done, in [0, 1], and one line

_LOOK_S = 0.2  # seconds between two checks of the progress of runs


@dataclass(frozen=True, slots=True)
class Failed:
    """A run without an outcome: its labels, and why."""

    labels: dict[str, Any]
    failure: Failure


@dataclass(frozen=True, slots=True)
class Runs:
    """Outcomes of a scenario's finished runs, in the order of its sweep; `starling.simulate` returns them.

    Args:
        scenario: with its sweep.
        planned: how many runs it has.
        finished: runs with an outcome.
        failed: runs without.
    """

    scenario: Scenario
    planned: int
    finished: tuple[Finished, ...]
    failed: tuple[Failed, ...] = ()

    def frame(self) -> Any:
        """Return one row per evaluation as a `pandas.DataFrame`: the run's labels, then the fields of `results.Row`.

        Raises:
            ConfigError: pandas is not installed.
        """
        if find_spec("pandas") is None:
            raise ConfigError("frame: needs pandas, which is not installed; try `pip install pandas`")
        import pandas as pd  # noqa: PLC0415 — not a dependency

        return pd.DataFrame(
            [
                {**run.labels, "metric": run.outcome.metric, **msgspec.structs.asdict(row)}
                for run in self.finished
                for row in run.outcome.rows
            ]
        )

    def plot(self, path: str | Path | None = None, *, x: str | None = None, group: Sequence[str] = ()) -> Any:
        """Draw the metric: mean ± standard deviation over seeds, one line for each variant.

        Args:
            path: png, svg or pdf to write; None: nothing is written.
            x: "rounds", "bytes" or "seconds"; None: a panel for each.
            group: keys of the sweep that label the lines; empty: all that vary.

        Returns:
            The `matplotlib.figure.Figure`.

        Raises:
            ConfigError: matplotlib is missing, nothing finished, or the file cannot be written.
        """
        plot.check(path if path is None else Path(path))
        if not self.finished:
            raise ConfigError("plot: no run has finished, so there is nothing to draw")
        figure = plot.figure(self.finished, self.scenario.name, self.scenario.simulate.target, x=x, group=group)
        if path is not None:
            plot.save(figure, Path(path))
        return figure

    def to_json(self) -> str:
        """Return the JSON that `starling simulate --json` prints; docs/schemas/simulate.json is its schema."""
        return results.to_json(msgspec.to_builtins(self.scenario), self.finished, self.planned).decode()

    def to_csv(self) -> str:
        """Return one line per evaluation."""
        return results.to_csv(self.finished)


@dataclass(slots=True)
class Sweep:
    """A sweep that is running."""

    cells: Sequence[Cell]
    executor: Executor | None = None  # None: this process, one run after the other. The caller shuts it down
    show: Show | None = None
    finished: dict[int, Finished] = field(default_factory=dict)
    failed: dict[int, Failed] = field(default_factory=dict)
    _rounds: dict[int, int] = field(default_factory=dict)  # finished rounds, by number of the run

    def check(self) -> None:
        """Check all runs before the first one, where torch is needed.

        Raises:
            ConfigError: one of them is impossible.
            GossipError: checking failed.
        """
        self._show("starting")
        executor, scenarios = self.executor, [cell.scenario for cell in self.cells]
        failure = worker.check(scenarios) if executor is None else executor.submit(worker.check, scenarios).result()
        if failure is not None:
            raise failure.error()

    def run(self) -> None:
        """Compute all runs; a failed run does not stop the others. Interrupted, it keeps the finished ones."""
        for number, outcome in self._local() if self.executor is None else self._submitted(self.executor):
            cell = self.cells[number]
            self._rounds[number] = cell.scenario.pace.rounds
            if isinstance(outcome, Failure):
                self.failed[number] = Failed(dict(cell.labels), outcome)
            else:
                self.finished[number] = Finished(labels=dict(cell.labels), outcome=outcome)
            self._show("done", number)

    def runs(self, scenario: Scenario) -> Runs:
        """Return the outcomes so far, in the order of the sweep."""
        finished = tuple(self.finished[number] for number in sorted(self.finished))
        failed = tuple(self.failed[number] for number in sorted(self.failed))
        return Runs(scenario, len(self.cells), finished, failed)

    def _local(self) -> Iterator[tuple[int, Outcome | Failure]]:
        for number, cell in enumerate(self.cells):
            yield number, worker.run(number, cell.scenario, partial(self._advanced, number))

    def _submitted(self, executor: Executor) -> Iterator[tuple[int, Outcome | Failure]]:
        waiting: dict[Future[Outcome | Failure], int] = {
            executor.submit(worker.run, number, cell.scenario): number for number, cell in enumerate(self.cells)
        }
        while waiting:
            done, _ = wait(waiting, _LOOK_S, return_when=FIRST_COMPLETED)
            for report in executor.reports() if isinstance(executor, Processes) else ():
                self._advanced(*report)
            for future in sorted(done, key=waiting.__getitem__):
                yield waiting.pop(future), _outcome(future)

    def _advanced(self, number: int, rounds: int, line: str) -> None:
        self._rounds[number] = max(rounds, self._rounds.get(number, 0))
        self._show(line, number)

    def _show(self, line: str, number: int | None = None) -> None:
        if self.show is not None:
            total = sum(cell.scenario.pace.rounds for cell in self.cells)
            run = "" if number is None else title(self.cells[number].labels)
            self.show(sum(self._rounds.values()) / total, f"{run}: {line}" if run else line)


def _outcome(future: Future[Outcome | Failure]) -> Outcome | Failure:
    """Return the result of a finished future; executors report a lost worker by their own exceptions."""
    try:
        return future.result()
    except (GossipError, BrokenExecutor, CancelledError, OSError) as error:
        return Failure(" ".join(str(error).split()) or type(error).__name__)
