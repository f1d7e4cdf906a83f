"""`starling bench never-worse`: find where the default mix is worse than plain averages, and by how much."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli.common import PATH, console, emit, json_option, say, table
from starling.node.cli.exit_codes import INTERRUPTED
from starling.node.cli.help import command

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from starling.kernels.schema import NeverWorseCase

LEAST_ROUNDS, MOST_ROUNDS, MOST_SEEDS, MOST_JOBS = 4, 100_000, 1000, 1024
KEEP = Path("starling-never-worse")


@command(
    ("starling bench never-worse --jobs 2", "all cells: five splits, three optimisers, two schedules, two rates, with and without faults"),
    ("starling bench never-worse --cells 'by_label/sgd/*' --seeds 2 --json", "some of them, for a program"),
    ("starling bench never-worse --cells 'by_label/sgd/*/faults' --set mix.kappa=0.2 --keep kappa-2", "a default that you wish for"),
    short_help="Compare the default mix with plain averages.",
)
@click.option(
    "--cells", "patterns", multiple=True, metavar="SPLIT/OPTIMIZER/SCHEDULE/RATE/FAULTS", help="Only these; * is any. Repeatable."
)
@click.option("--seeds", type=int, default=6, help="Seeds of every cell, from 1 on.")
@click.option("--rounds", type=int, default=80, help="Of every run; it is evaluated some twenty times.")
@click.option(
    "--data",
    type=PATH,
    metavar="FOLDER",
    help="With text/languages and text/authors. Default: STARLING_DATA, or ../shared/data; without texts there, made-up ones.",
)
@click.option("--set", "given", multiple=True, metavar="KEY=VALUE", help="Of the default's mix, e.g. mix.kappa=0.2; repeatable.")
@click.option(
    "--keep",
    type=PATH,
    metavar="FOLDER",
    default=KEEP,
    show_default=True,
    help="A file for each cell; what is there already is not measured again.",
)
@click.option("--jobs", type=int, default=1, help="Processes: runs at the same time.")
@json_option
@click.pass_obj
def never_worse(
    injected: Executor | None,
    patterns: tuple[str, ...],
    seeds: int,
    rounds: int,
    data: Path | None,
    given: tuple[str, ...],
    keep: Path,
    jobs: int,
    as_json: bool,
) -> int:
    """Compare the default mix with plain averages (mix=dsgd) at every evaluation, in simulated swarms.

    Each cell is a split of the data, an optimiser, a schedule, a rate (normal, or twenty times that) and calm or faults: three of ten
    messages are lost for good, and two nodes crash at half time. Both have the same seeds, partners and batches. A difference is positive
    where the default is better, and counts beyond three standard errors over the seeds.

    Ctrl-C keeps what is measured; the same command goes on.
    """
    from starling.kernels import texts
    from starling.kernels.never_worse import Bench, cells, measured, wanted
    from starling.kernels.paired import Results
    from starling.node.cli.progress import Lines, on_stderr
    from starling.node.simulate.executors import Processes

    for key, value, least, most, usual in (
        ("--seeds", seeds, 1, MOST_SEEDS, 6),
        ("--rounds", rounds, LEAST_ROUNDS, MOST_ROUNDS, 80),
        ("--jobs", jobs, 1, MOST_JOBS, 2),
    ):
        if not least <= value <= most:
            raise ConfigError(f"{key}: must be in [{least}, {most}], got {value}; try `starling bench never-worse {key} {usual}`")
    chosen, interrupted = cells(patterns), False
    cases: list[NeverWorseCase] = []
    failures: list[GossipError] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="starling-texts-")))
        prepared = texts.prepare(wanted(chosen), texts.find(data), folder)
        bench = Bench(rounds, range(1, seeds + 1), given, prepared, Results(keep))
        for warning in bench.check(chosen):
            say(f"note: {warning}")
        executor = injected or stack.enter_context(Processes(jobs))
        display = stack.enter_context(on_stderr(Lines))
        try:
            for result in measured(bench, chosen, executor, display.show):
                failures.append(result) if isinstance(result, GossipError) else cases.append(result)
        except KeyboardInterrupt:
            interrupted = True
    _print(cases, as_json=as_json)
    for failure in failures:
        say(f"starling: bench never-worse: {failure}")
    if interrupted:
        say(f"starling: interrupted, {len(cases)} of {len(chosen)} cells are in {keep}; the same command goes on")
        return INTERRUPTED
    return max((2 if isinstance(failure, ConfigError) else 1 for failure in failures), default=0)


def _print(cases: Sequence[NeverWorseCase], *, as_json: bool) -> None:
    """Print JSON, or a row for each cell and how many are worse."""
    from starling.node.cli.documents import NeverWorse

    if as_json:
        emit(NeverWorse(cases=tuple(cases)))
        return
    if not cases:
        return
    columns = (
        "cell",
        "metric",
        ">default",
        ">plain",
        ">at the end",
        ">±",
        ">worst",
        ">±",
        ">at round",
        ">below",
        ">above",
        ">exchanged",
        "",
    )
    out = console()
    out.print(table(columns, map(_row, cases)))
    worse = sum(case.worse for case in cases)
    out.print(f"At some evaluation {worse} of {len(cases)} cells are worse than plain averages by more than three standard errors.")


def _row(case: NeverWorseCase) -> list[str]:
    figures = (case.default_end, case.plain_end, case.end, case.end_error, case.worst, case.worst_error)
    shown = ["–" if figure is None else f"{figure:.4g}" for figure in figures]
    looks = len(case.rounds)
    diverged = f"diverged: {case.diverged[0]} of {len(case.seeds)}, plain {case.diverged[1]}" if any(case.diverged) else ""
    return [
        case.cell,
        case.metric,
        *shown,
        "–" if case.worst_round is None else str(case.worst_round),
        f"{case.below}/{looks}",
        f"{case.above}/{looks}",
        f"{case.committed[0]:.0%}",
        " ".join(filter(None, ("worse" if case.worse else "", diverged))),
    ]
