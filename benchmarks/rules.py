"""Measure combining rules on this machine, compared with byzfl's: `starling bench rules --json`.

Figures of a rule `r` at length d, as `starling.kernels.schema` explains them:

    r@d.ours_cpu_s, r@d.peer_cpu_s    processor seconds of one thread
    r@d.ratio                         the peer's over ours
    r@d.max_error                     largest difference of a coordinate; coordinates are about 1
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.command import cases
from benchmarks.recipes import RulesRecipe
from benchmarks.results import Figures, Run

KEYS = ("ours_cpu_s", "peer_cpu_s", "ratio", "max_error")


def measure(recipe: RulesRecipe) -> list[Run]:
    """Measure one length after another.

    Raises:
        RuntimeError: the command failed.
    """
    return [run for d in recipe.dims for run in cases(arguments(recipe, d), f"d = {d:,}")]


def arguments(recipe: RulesRecipe, d: int) -> list[str]:
    """Return the command line for one length, without `starling`."""
    chosen = [word for rule in recipe.rules for word in ("--rule", rule)]
    sizes = ["--d", str(d), "--n", str(recipe.vectors)]
    return ["bench", "rules", *sizes, *chosen, "--repeat", str(recipe.repeat), "--json"]


def figures(runs: Sequence[Run]) -> Figures:
    """Return the figures of the runs."""
    return {f"{run['rule']}@{run['d']}.{key}": run[key] for run in runs for key in KEYS}
