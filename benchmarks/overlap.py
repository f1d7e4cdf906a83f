"""Speed of a node that exchanges, relative to a plain loop and to itself alone, by `starling bench overlap --json`.

Figures of a case, which is called model_pace_link, e.g. gpt_steps_20, and gpt_script_steps_20 where a script does the local steps:

    case.kept                local steps a second in the swarm over those of a plain PyTorch loop, of the repetition with the median ratio
    case.kept_undisturbed    that without the time that other processes took
    case.ratio               local steps a second in the swarm over those of a node alone, by the same driver
    case.undisturbed         that without the time that other processes took
    case.plain_steps_s, case.alone_steps_s, case.swarm_steps_s
    case.peak_bytes_per_parameter   of an engine, beyond one with next to no parameters
    case.exchanges           committed in the time measured
    case.load                the higher load average before or after: beyond the number of cores a ratio measures the neighbours too
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.command import cases
from benchmarks.recipes import OverlapRecipe
from benchmarks.results import Figures, Run

FIGURES = (
    "kept",
    "kept_undisturbed",
    "ratio",
    "undisturbed",
    "plain_steps_s",
    "alone_steps_s",
    "swarm_steps_s",
    "peak_bytes_per_parameter",
    "exchanges",
)


def measure(recipe: OverlapRecipe) -> list[Run]:
    """Measure all cases, a model at a time.

    Raises:
        RuntimeError: one failed.
    """
    links = [word for mbit in recipe.mbit for word in ("--mbit", str(mbit))]
    paces = [word for pace in recipe.paces for word in ("--pace", pace)]
    drivers = [word for driver in recipe.drivers for word in ("--driver", driver)]
    runs: list[Run] = []
    for model, d in recipe.models.items():
        words = ["--model", model, "--d", str(d), "--seconds", str(recipe.seconds), "--repeat", str(recipe.repeat)]
        runs += cases(["bench", "overlap", *words, *links, *paces, *drivers, "--json"], f"overlap, {model}")
    return runs


def figures(runs: Sequence[Run]) -> Figures:
    """Return the figures of the cases."""
    table: Figures = {}
    for run in runs:
        by = "_script" if run["driver"] == "script" else ""
        name = f"{run['model']}{by}_{run['pace']}_{run['link']:g}"
        table |= {f"{name}.{figure}": run[figure] for figure in FIGURES if figure in run}
        table[f"{name}.load"] = max(run["load"])
    return table
