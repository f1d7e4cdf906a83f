"""`starling simulate`: run a scenario file's simulations in worker processes, and print tables, JSON, CSV or a plot.

Standard output is the tables, or one JSON object. Progress goes to standard error. Ctrl-C ends the runs under way; what is finished by
then is printed and written all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli.common import (
    PATH,
    console,
    file_option,
    force_option,
    json_option,
    preset_option,
    refuse_existing,
    say,
    set_option,
    table,
)
from starling.node.cli.exit_codes import INTERRUPTED
from starling.node.cli.help import command
from starling.node.cli.progress import Display, on_stderr, slow
from starling.node.status.control import typed

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from rich.table import Table
    from rich.text import Text

    from starling.node.simulate.results import Finished
    from starling.node.simulate.runs import Runs, Sweep
    from starling.node.simulate.sweep import Cell

SHOWS_A_NODE, SHOWS_A_SCENARIO = "`starling config show`", "`starling config show scenario`"


@command(
    ("starling simulate examples/simulate-digits.toml", "a table for each run, one for all"),
    ("starling simulate examples/simulate-churn.toml --csv churn.csv --plot churn.png --jobs 2", ""),
    ("starling simulate examples/simulate-digits.toml --set mix.kappa=0.05 --set sweep.grid={} --json", "one run, for a program"),
)
@click.argument("file", metavar="SCENARIO.toml", type=PATH)
@set_option("scenario", help="Any key of the file, e.g. pace.rounds=50.")
@preset_option
@json_option
@file_option("--csv", "csv_file", help="Write every evaluation as CSV.")
@file_option("--aggregate", "aggregate_file", help="Write mean and standard deviation over seeds of every evaluation as CSV.")
@file_option("--plot", "plot_file", help="Draw a .png, .svg or .pdf.")
@force_option
@click.option("--x", type=click.Choice(["rounds", "bytes", "seconds"]), help="Horizontal axis of --plot; default: all three.")
@click.option(
    "--group",
    multiple=True,
    metavar="KEY",
    help="Key of the sweep that --plot and --aggregate tell runs apart by; default: all but the seed.",
)
@click.option("--jobs", type=int, default=1, help="Processes: runs of a sweep at the same time.")
@click.option("--cluster", metavar="ADDRESS", help="Compute on the dask cluster of this scheduler instead, e.g. tcp://10.0.0.1:8786.")
@click.option("--progress/--no-progress", default=None, help="Say how far it is; default: if a terminal reads.")
@click.pass_obj
def simulate(
    injected: Executor | None,
    file: Path,
    assignments: tuple[str, ...],
    preset: str | None,
    as_json: bool,
    csv_file: Path | None,
    aggregate_file: Path | None,
    plot_file: Path | None,
    force: bool,
    x: str | None,
    group: tuple[str, ...],
    jobs: int,
    cluster: str | None,
    progress: bool | None,
) -> int:
    """Simulate a swarm, or a sweep of swarms, from a scenario file.

    The file's keys, each with its meaning: starling config show scenario. Examples are in examples/.

    preset = "open" in the file, or --preset, gives the values of a swarm of strangers to all keys that neither the file nor --set gives.
    """
    from starling.node.config import presets
    from starling.node.simulate import executors, results, rules, sweep

    if jobs < 1:
        raise ConfigError(f"--jobs: must be >= 1, got {jobs}; try `--jobs 2`")
    files = Files(csv_file, aggregate_file, plot_file, x, group)
    files.check(force=force)
    try:
        scenario, cells = sweep.read(file, presets.asked(preset, assignments))
    except ConfigError as error:
        raise ConfigError(str(error).replace(SHOWS_A_NODE, SHOWS_A_SCENARIO)) from error
    results.check_group((cell.labels for cell in cells), group)
    for warning in rules.check(cells):
        say(f"note: {warning}")
    with ExitStack() as stack:
        executor = injected or stack.enter_context(
            executors.Processes(jobs, scenario.simulate.threads) if cluster is None else executors.cluster(cluster)
        )
        shown = sys.stderr.isatty() if progress is None else progress
        display = stack.enter_context(on_stderr() if shown else Display())
        under_way, ended_by = _run(cells, executor, display)
    runs = under_way.runs(scenario)
    if runs.finished:
        _print(runs, as_json=as_json)
        files.write(runs)
    if isinstance(ended_by, KeyboardInterrupt):
        say(f"starling: interrupted, {len(runs.finished)} of {runs.planned} runs are finished")
        return INTERRUPTED
    if ended_by is not None:
        raise ended_by
    for failed in runs.failed:
        run = sweep.title(failed.labels)
        say(f"starling: {failed.failure.reason}{f' (in the run with {run})' if run else ''}")
    return max((2 if failed.failure.config else 1 for failed in runs.failed), default=0)


@dataclass(frozen=True, slots=True)
class Files:
    """Paths of the results; None: not written. `x` and `group` are of the plot, `group` of what is aggregated too."""

    csv: Path | None
    aggregate: Path | None
    plot: Path | None
    x: str | None
    group: tuple[str, ...]

    def check(self, *, force: bool) -> None:
        """Raise ConfigError before any run if a file could not be written after it, or exists and is not to be replaced (`force`)."""
        from starling.node.simulate import plot

        for option, path in (("--csv", self.csv), ("--aggregate", self.aggregate), ("--plot", self.plot)):
            if path is not None and not path.absolute().parent.is_dir():
                raise ConfigError(f"{option}: {path.parent} is no folder; try `mkdir -p {typed(path.parent)}`")
            refuse_existing(option, path, force=force)
        if self.plot is not None:
            plot.check(self.plot)

    def write(self, runs: Runs) -> None:
        """Write the requested files. Raises GossipError: one cannot be written."""
        from starling.node.simulate import results

        if self.csv is not None:
            _save("--csv", self.csv, runs.to_csv())
        if self.aggregate is not None:
            _save("--aggregate", self.aggregate, results.to_csv_over_seeds(runs.finished, self.group))
        if self.plot is not None:
            with slow(f"drawing {self.plot}"):
                runs.plot(self.plot, x=self.x, group=self.group)


def _run(cells: Sequence[Cell], executor: Executor, display: Display) -> tuple[Sweep, KeyboardInterrupt | GossipError | None]:
    """Do all runs -> their results, and the error that ended them early, if any."""
    from starling.node.simulate.runs import Sweep

    under_way = Sweep(cells, executor, display.show)
    try:
        under_way.check()
        under_way.run()
    except (KeyboardInterrupt, GossipError) as error:
        return under_way, error
    return under_way, None


def _save(option: str, path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise GossipError(f"{option}: {path} cannot be written: {error.strerror}; name another file") from error


def _print(runs: Runs, *, as_json: bool) -> None:
    """Print JSON, or a block for each run and a table with the last line of all."""
    if as_json:
        click.echo(runs.to_json())
        return
    out = console()
    for number, run in enumerate(runs.finished):
        if number:
            out.print()
        for part in _block(run, runs.scenario.simulate.target):
            out.print(part)
    if len(runs.finished) > 1:
        out.print()
        out.print(_comparison(runs.finished))


def _block(run: Finished, target: float) -> Iterator[Table | Text]:
    """Yield the evaluations of one run, then its counts and warnings."""
    from rich.text import Text

    from starling.node.simulate.sweep import title
    from starling.node.status import format as show

    outcome = run.outcome
    if run.labels:
        yield Text(title(run.labels), style="bold")
    columns = ("round", "seconds", "bytes/node", "exchanges", "nodes", "loss", show.metric(outcome.metric))
    rows = (
        (
            show.count(row.round),
            f"{row.seconds:,.1f}",
            show.size(row.bytes_per_node),
            show.count(round(row.exchanges_per_node)),
            show.count(row.alive),
            *map(_figure, (row.loss, row.mean, row.min, row.max, row.mean_model, row.consensus_distance)),
        )
        for row in outcome.rows
    )
    yield table((f">{name}" for name in (*columns, "min", "max", "mean model", "distance")), rows)
    counted = ", ".join(f"{count:,} {name}" for name, count in outcome.counts.items() if count)
    yield Text(f"{outcome.parameters:,} parameters; {counted or 'no exchanges'}; {outcome.wall_s:.1f} s on this machine")
    if outcome.undone:
        yield Text(f"{outcome.undone:,} local steps were undone: numbers were not finite", style="bold red")
    if outcome.diverged is not None:
        yield Text(f"diverged after {outcome.diverged:,} rounds; try a lower optimizer.lr or mix.kappa", style="bold red")
    if target and outcome.target is None:
        yield Text(f"{target:g} was not reached")
    elif target and (at := outcome.target) is not None:
        cost = f"{at.seconds:,.1f} s, {show.size(at.bytes_per_node)} a node"
        yield Text(f"{target:g} was reached at round {at.round:,}, {cost}")


def _comparison(finished: Sequence[Finished]) -> Table:
    """Return the last line of each run, side by side."""
    from starling.node.status import format as show

    keys = list(dict.fromkeys(key for run in finished for key in run.labels))
    last = [(run.labels, run.outcome.rows[-1]) for run in finished]
    columns = (show.metric(finished[0].outcome.metric), "min", "max", "distance", "bytes/node", "seconds")
    return table(
        (*keys, *(f">{name}" for name in columns)),
        (
            (
                *(str(labels.get(key, "")) for key in keys),
                *map(_figure, (row.mean, row.min, row.max, row.consensus_distance)),
                show.size(row.bytes_per_node),
                f"{row.seconds:,.1f}",
            )
            for labels, row in last
        ),
    )


def _figure(value: float | None) -> str:
    """Format four significant digits: errors span many orders of magnitude."""
    return "–" if value is None else f"{value:.4g}"
