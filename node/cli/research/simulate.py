"""`starling simulate`: a scenario file's runs in worker processes, shown while they compute, summed up in tables, JSON, CSV or a plot.

Standard output is the tables, or one JSON object. Progress goes to standard error. Ctrl-C ends the runs under way; what is finished by
then is printed and written all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli import completion
from starling.node.cli.common import console, json_option, preset_option
from starling.node.cli.help import Command

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from starling.node.cli.progress import Display
    from starling.node.simulate.results import Finished
    from starling.node.simulate.runs import Runs, Sweep
    from starling.node.simulate.schema import Scenario
    from starling.node.simulate.sweep import Cell

INTERRUPTED = 130
SHOWS_A_NODE, SHOWS_A_SCENARIO = "`starling config show`", "`starling config show scenario`"


@click.command(
    cls=Command,
    examples=(
        ("starling simulate examples/simulate-digits.toml", "a table for each run, one for all"),
        ("starling simulate examples/simulate-churn.toml --csv churn.csv --plot churn.png --jobs 2", ""),
        (
            "starling simulate examples/simulate-digits.toml --set mix.kappa=0.05 --set sweep.grid={} --json",
            "one run, for a program",
        ),
    ),
)
@click.argument("file", metavar="SCENARIO.toml", type=click.Path(path_type=Path))
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any key of the file, e.g. pace.rounds=50.",
    shell_complete=completion.keys("scenario"),
)  # fmt: skip
@preset_option
@json_option
@click.option(
    "--csv", "csv_file", metavar="FILE", type=click.Path(path_type=Path), help="Write every evaluation as CSV."
)
@click.option(
    "--aggregate", "aggregate_file", metavar="FILE", type=click.Path(path_type=Path),
    help="Write mean and standard deviation over seeds of every evaluation as CSV.",
)  # fmt: skip
@click.option("--plot", "plot_file", metavar="FILE", type=click.Path(path_type=Path), help="Draw a .png, .svg or .pdf.")
@click.option(
    "--x", type=click.Choice(["rounds", "bytes", "seconds"]), help="Horizontal axis of --plot; default: all three."
)
@click.option(
    "--group",
    multiple=True,
    metavar="KEY",
    help="Key of the sweep that --plot and --aggregate tell runs apart by; default: all but the seed.",
)
@click.option("--jobs", type=int, default=1, show_default=True, help="Processes: runs of a sweep at the same time.")
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Compute on the dask cluster of this scheduler instead, e.g. tcp://10.0.0.1:8786.",
)
@click.option("--progress/--no-progress", default=None, help="Say how far it is; default: if a terminal reads.")
@click.pass_obj
def simulate(
    injected: Executor | None, file: Path, assignments: tuple[str, ...], preset: str | None, as_json: bool, csv_file: Path | None,
    aggregate_file: Path | None, plot_file: Path | None, x: str | None, group: tuple[str, ...], jobs: int, cluster: str | None,
    progress: bool | None,
) -> int:  # fmt: skip
    """Simulate a swarm, or a sweep of swarms, from a scenario file.

    The file's keys, each with its meaning: starling config show scenario. Examples are in examples/.

    preset = "open" in the file, or --preset, gives the values of a swarm of strangers to all keys that neither the file nor --set gives.
    """
    from starling.node.config import presets
    from starling.node.simulate import plot, results, rules, sweep

    if jobs < 1:
        raise ConfigError(f"--jobs: must be >= 1, got {jobs}; try `--jobs 2`")
    outputs = _Outputs(as_json, csv_file, aggregate_file, plot_file, x, group)
    for option, path in (("--csv", csv_file), ("--aggregate", aggregate_file), ("--plot", plot_file)):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"{option}: {path.parent} is no folder; try `mkdir -p {path.parent}`")
    if plot_file is not None:
        plot.check(plot_file)
    try:
        scenario, cells = sweep.read(file, presets.asked(preset, assignments))
    except ConfigError as error:
        raise ConfigError(str(error).replace(SHOWS_A_NODE, SHOWS_A_SCENARIO)) from error
    results.check_group((cell.labels for cell in cells), group)
    for warning in rules.check(cells):
        click.echo(f"note: {warning}", err=True)
    with ExitStack() as stack:
        executor = injected or _executor(stack, jobs, cluster, scenario.simulate.threads)
        display = stack.enter_context(_display(sys.stderr.isatty() if progress is None else progress))
        under_way, ended_by = _run(cells, executor, display)
    runs = under_way.runs(scenario)
    _write(runs, outputs)
    if isinstance(ended_by, KeyboardInterrupt):
        click.echo(f"starling: interrupted, {len(runs.finished)} of {runs.planned} runs are finished", err=True)
        return INTERRUPTED
    if ended_by is not None:
        raise ended_by
    for failed in runs.failed:
        title = ", ".join(f"{key} = {value}" for key, value in failed.labels.items())
        click.echo(f"starling: {failed.failure.reason}{f' (in the run with {title})' if title else ''}", err=True)
    return max((2 if failed.failure.config else 1 for failed in runs.failed), default=0)


@dataclass(frozen=True, slots=True)
class _Outputs:
    """What is printed and written."""

    as_json: bool
    csv: Path | None
    aggregate: Path | None
    plot: Path | None
    x: str | None
    group: tuple[str, ...]


def _executor(stack: ExitStack, jobs: int, address: str | None, threads: int) -> Executor:
    from starling.node.simulate import executors

    if address is not None:
        return stack.enter_context(executors.cluster(address))
    return stack.enter_context(executors.Processes(jobs, threads))


def _run(
    cells: Sequence[Cell], executor: Executor, display: Display
) -> tuple[Sweep, KeyboardInterrupt | GossipError | None]:
    """All runs, and what ended them before their time."""
    from starling.node.simulate.runs import Sweep

    under_way = Sweep(cells, executor, display.show)
    try:
        under_way.check()
        under_way.run()
    except (KeyboardInterrupt, GossipError) as error:
        return under_way, error
    return under_way, None


class Silent:
    """No progress."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to take away."""

    def show(self, fraction: float, line: str) -> None:
        """Say nothing."""


def _display(show: bool) -> Display:
    from starling.node.cli.progress import on_stderr

    if not show:
        return Silent()
    return on_stderr()


# --- what came out ----------------------------------------------------------------------------------------------


def _write(runs: Runs, outputs: _Outputs) -> None:
    """Tables or JSON, and the files; nothing at all where nothing is finished."""
    from starling.node.simulate import results

    if not runs.finished:
        return
    if outputs.as_json:
        click.echo(runs.to_json())
    else:
        for number, run in enumerate(runs.finished):
            _print(run, runs.scenario, first=number == 0)
        if len(runs.finished) > 1:
            _compare(runs.finished)
    if outputs.csv is not None:
        _save("--csv", outputs.csv, runs.to_csv())
    if outputs.aggregate is not None:
        _save("--aggregate", outputs.aggregate, results.to_csv_over_seeds(runs.finished, outputs.group))
    if outputs.plot is not None:
        from starling.node.cli.progress import Slow

        with Slow(f"drawing {outputs.plot}"):
            runs.plot(outputs.plot, x=outputs.x, group=outputs.group)


def _save(option: str, path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be written: {error.strerror}; name another file") from error


def _print(run: Finished, scenario: Scenario, *, first: bool) -> None:
    """One block: evaluations, then what it comes to."""
    from rich.table import Table
    from rich.text import Text

    from starling.node.status import format as show

    outcome, out = run.outcome, console()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    name = outcome.metric.replace("_", " ")
    for column in (
        "round",
        "seconds",
        "bytes/node",
        "exchanges",
        "nodes",
        "loss",
        name,
        "min",
        "max",
        "mean model",
        "distance",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for row in outcome.rows:
        table.add_row(
            show.count(row.round), f"{row.seconds:,.1f}", show.size(row.bytes_per_node), show.count(round(row.exchanges_per_node)),
            show.count(row.alive), _figure(row.loss), *map(_figure, (row.mean, row.min, row.max, row.mean_model)),
            _figure(row.consensus_distance),
        )  # fmt: skip
    if not first:
        out.print()
    if run.labels:
        out.print(Text(", ".join(f"{key} = {value}" for key, value in run.labels.items()), style="bold"))
    out.print(table)
    counted = ", ".join(f"{count:,} {name}" for name, count in outcome.counts.items() if count)
    out.print(
        Text(f"{outcome.parameters:,} parameters; {counted or 'no exchanges'}; {outcome.wall_s:.1f} s on this machine")
    )
    if outcome.undone:
        out.print(Text(f"{outcome.undone:,} local steps were undone: numbers were not finite", style="bold red"))
    if outcome.diverged is not None:
        out.print(
            Text(f"diverged after {outcome.diverged:,} rounds; try a lower optimizer.lr or mix.kappa", style="bold red")
        )
    if scenario.simulate.target:
        out.print(Text(_target(run, scenario.simulate.target)))


def _figure(value: float | None) -> str:
    """Four digits that count: errors go through many orders of magnitude."""
    return "–" if value is None else f"{value:.4g}"


def _target(run: Finished, target: float) -> str:
    from starling.node.status import format as show

    at = run.outcome.target
    if at is None:
        return f"{target:g} was not reached"
    return f"{target:g} was reached at round {at.round:,}, {at.seconds:,.1f} s, {show.size(at.bytes_per_node)} a node"


def _compare(finished: Sequence[Finished]) -> None:
    """The last line of each run, side by side."""
    from rich.table import Table

    from starling.node.status import format as show

    keys = list(dict.fromkeys(key for run in finished for key in run.labels))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for key in keys:
        table.add_column(key, no_wrap=True)
    for column in (finished[0].outcome.metric.replace("_", " "), "min", "max", "distance", "bytes/node", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    for run in finished:
        row = run.outcome.rows[-1]
        table.add_row(
            *(str(run.labels.get(key, "")) for key in keys), *map(_figure, (row.mean, row.min, row.max, row.consensus_distance)),
            show.size(row.bytes_per_node), f"{row.seconds:,.1f}",
        )  # fmt: skip
    out = console()
    out.print()
    out.print(table)
