"""`starling simulate`: a scenario file's runs in worker processes, shown while they compute, summed up in tables, JSON, CSV or a plot.

Standard output is the tables, or one JSON object. Progress goes to standard error. Ctrl-C ends the runs under way; what is finished by
then is printed and written all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli import completion
from starling.node.cli.common import console, json_option, preset_option
from starling.node.cli.help import Command

if TYPE_CHECKING:
    from starling.node.cli.progress import Display
    from starling.node.simulate.results import Finished
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
@click.option("--plot", "plot_file", metavar="FILE", type=click.Path(path_type=Path), help="Draw a .png, .svg or .pdf.")
@click.option("--jobs", type=int, default=1, show_default=True, help="Runs of a sweep at the same time.")
@click.option("--progress/--no-progress", default=None, help="Say how far it is; default: if a terminal reads.")
def simulate(
    file: Path, assignments: tuple[str, ...], preset: str | None, as_json: bool, csv_file: Path | None, plot_file: Path | None,
    jobs: int, progress: bool | None,
) -> int:  # fmt: skip
    """Simulate a swarm, or a sweep of swarms, from a scenario file.

    The file's keys, each with its meaning: starling config show scenario. Examples are in examples/.

    preset = "open" in the file, or --preset, gives the values of a swarm of strangers to all keys that neither the file nor --set gives.
    """
    from starling.node.config import presets
    from starling.node.simulate import plot, rules, sweep

    if jobs < 1:
        raise ConfigError(f"--jobs: must be >= 1, got {jobs}; try `--jobs 2`")
    for option, path in (("--csv", csv_file), ("--plot", plot_file)):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"{option}: {path.parent} is no folder; try `mkdir -p {path.parent}`")
    if plot_file is not None:
        plot.check(plot_file)
    try:
        scenario, cells = sweep.read(file, presets.asked(preset, assignments))
    except ConfigError as error:
        raise ConfigError(str(error).replace(SHOWS_A_NODE, SHOWS_A_SCENARIO)) from error
    for warning in rules.check(cells):
        click.echo(f"note: {warning}", err=True)
    finished, ended_by = _run(cells, jobs, sys.stderr.isatty() if progress is None else progress)
    _write(scenario, finished, len(cells), as_json=as_json, csv_file=csv_file, plot_file=plot_file)
    if isinstance(ended_by, KeyboardInterrupt):
        click.echo(f"starling: interrupted, {len(finished)} of {len(cells)} runs are finished", err=True)
        return INTERRUPTED
    if ended_by is not None:
        raise ended_by
    return 0


def _run(cells: Sequence[Cell], jobs: int, show: bool) -> tuple[list[Finished], KeyboardInterrupt | GossipError | None]:
    """All runs -> those that ended, in the sweep's order, and what kept the others from it."""
    from starling.node.simulate.pool import Pool
    from starling.node.simulate.results import Finished

    outcomes = {}
    ended_by: KeyboardInterrupt | GossipError | None = None
    try:
        with _display(show) as display, Pool(cells, jobs, display.show) as pool:
            pool.check()
            for cell, outcome in pool.run():
                outcomes[cell] = outcome  # noqa: PERF403 — what is there when an error comes must stay
    except (KeyboardInterrupt, GossipError) as error:
        ended_by = error
    found = [Finished(labels=dict(cells[cell].labels), outcome=outcome) for cell, outcome in sorted(outcomes.items())]
    return found, ended_by


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


def _write(
    scenario: Scenario, finished: Sequence[Finished], planned: int, *, as_json: bool, csv_file: Path | None, plot_file: Path | None
) -> None:  # fmt: skip
    """Tables or JSON, and the files; nothing at all where nothing is finished."""
    import msgspec

    from starling.node.simulate import plot, results

    if not finished:
        return
    if as_json:
        document = results.document(msgspec.to_builtins(scenario), finished, planned)
        click.echo(results.to_json(document))
    else:
        for number, run in enumerate(finished):
            _print(run, scenario, first=number == 0)
        if len(finished) > 1:
            _compare(finished)
    if csv_file is not None:
        try:
            csv_file.write_text(results.to_csv(finished))
        except OSError as error:
            raise ConfigError(f"--csv: {csv_file} cannot be written: {error.strerror}; name another file") from error
    if plot_file is not None:
        from starling.node.cli.progress import Slow

        with Slow(f"drawing {plot_file}"):
            plot.draw(finished, scenario.name, scenario.simulate.target, plot_file)


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
