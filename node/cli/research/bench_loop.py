"""`starling bench loop`: compare the speed of a node's local steps with a plain training loop's."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click

from starling.gossip.errors import ConfigError
from starling.node.cli.common import console, emit, json_option, table
from starling.node.cli.help import command

if TYPE_CHECKING:
    from starling.kernels.schema import LoopCase


@command(
    ("starling bench loop", "all cases: four models, three optimisers, ways of mixing, a task and a script"),
    ("starling bench loop --cases 'mlp/*/dsgd' --cases 'gpt_10m/adamw/*/script' --json", "some of them, for a program"),
    short_help="Measure local steps beside a plain PyTorch loop's.",
)
@click.option("--cases", "patterns", multiple=True, metavar="MODEL/OPTIMIZER/MIX/DRIVER", help="Only these; * is any. Repeatable.")
@click.option("--repeat", type=int, default=9, help="Pairs of slices, in turn, of which the median ratio counts.")
@click.option("--seconds", type=float, default=0.3, help="Processor time of a slice, about.")
@json_option
def loop(patterns: tuple[str, ...], repeat: int, seconds: float, as_json: bool) -> None:
    """Measure how much of a plain PyTorch loop's speed local steps keep: processor time on one thread.

    The same model, data, batch size and optimiser in two processes that take turns: a built-in task in the engine, or a script with
    `starling.Swarm`, and a loop as one would write it. With dsgd nothing is corrected, with default as in a swarm that was created without
    options: sgd by flows, other optimisers by averages of what they remember. Exchanges are made before; what they cost is `starling bench
    overlap`.
    """
    from starling.kernels.loop import measure
    from starling.node.cli.documents import Loops
    from starling.node.cli.progress import Lines, on_stderr

    if not 1 <= repeat <= 1000:
        raise ConfigError(f"--repeat: must be in [1, 1000], got {repeat}; try `starling bench loop --repeat 9`")
    if not 0.001 <= seconds <= 3600.0:
        raise ConfigError(f"--seconds: must be in [0.001, 3600], got {seconds:g}; try `starling bench loop --seconds 0.3`")
    chosen, measured = wanted(patterns), []
    with on_stderr(Lines) as display:
        for number, case in enumerate(chosen):
            display.show(number / len(chosen), f"{number + 1}/{len(chosen)}  {'/'.join(case)}")
            measured.append(measure(*case, repeat, seconds))
    if as_json:
        emit(Loops(cases=tuple(measured)))
        return
    columns = ("model", ">d", "optimizer", "mix", "driver", ">plain, ms", ">ours, ms", ">kept")
    console().print(table(columns, map(_row, measured), fold=True))


def wanted(patterns: Sequence[str]) -> list[tuple[str, str, str, str]]:
    """Return the cases that match a pattern, all if there is none. Raises ConfigError: a pattern matches none."""
    from starling.kernels.schema import DRIVERS, LOOP_CASES, LOOP_MIXES, LOOP_MODELS, LOOP_OPTIMIZERS

    every = list(LOOP_CASES)
    for pattern in patterns:
        if not any(_matches(case, pattern) for case in every):
            named = "; ".join(", ".join(names) for names in (LOOP_MODELS, LOOP_OPTIMIZERS, LOOP_MIXES, DRIVERS))
            raise ConfigError(
                f"--cases: {pattern!r} is no MODEL/OPTIMIZER/MIX/DRIVER of {named}; try `starling bench loop --cases 'mlp/*/*'`"
            )
    return [case for case in every if not patterns or any(_matches(case, each) for each in patterns)]


def _matches(case: Sequence[str], pattern: str) -> bool:
    """Return whether a pattern matches a case; one without a driver matches both."""
    return any(fnmatchcase("/".join(part), pattern) for part in (case, case[:3]))


def _row(case: LoopCase) -> list[str]:
    times = (f"{ms:.3f}" for ms in (case.plain_ms, case.ours_ms))
    return [case.model, f"{case.d:,}", case.optimizer, case.mix, case.driver, *times, f"{case.kept:.2f}"]
