"""Speed of local steps relative to a plain PyTorch loop, by `starling bench loop --json`.

Figures of a case, which is called model_optimizer_mix, e.g. mlp_sgd_dsgd, with _script behind it where a script does local steps:

    case.kept                  processor time of a plain step over that of a local one, of the pair of slices with the median ratio
    case.plain_ms, case.ours_ms
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.command import cases
from benchmarks.recipes import LoopRecipe
from benchmarks.results import Figures, Run

FIGURES = ("kept", "plain_ms", "ours_ms")
_OF = {"task": "", "script": "_script"}


def measure(recipe: LoopRecipe) -> list[Run]:
    """Measure all cases of the recipe's patterns.

    Raises:
        RuntimeError: one failed.
    """
    patterns = [word for pattern in recipe.cases for word in ("--cases", pattern)]
    words = ["--repeat", str(recipe.repeat), "--seconds", str(recipe.seconds)]
    return cases(["bench", "loop", *patterns, *words, "--json"], "loop")


def figures(runs: Sequence[Run]) -> Figures:
    """Return the figures of the cases."""
    return {
        f"{run['model']}_{run['optimizer']}_{run['mix']}{_OF[run['driver']]}.{figure}": run[figure] for run in runs for figure in FIGURES
    }
