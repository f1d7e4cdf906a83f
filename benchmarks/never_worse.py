"""Cells in which the default mix is worse than plain averages, by `starling bench never-worse --json`.

Figures of a cell, which is called split-optimizer-schedule-rate-faults. Differences are the default's metric minus that of plain averages,
positive where the default is better, mean over seeds:

    cell.worst       the least of all evaluations
    cell.worst_round, .worst_error   where that is, and its standard error over seeds
    cell.end, .end_error
    cell.plain       what plain averages end with
    cell.below       share of the evaluations at which it is worse by more than three standard errors
    cell.above       share at which it is better by more than that
    cell.committed   share of the exchanges with living nodes that took place

and of an optimiser, and of `all`:

    OPTIMIZER.cells
    OPTIMIZER.worse  cells that are below at some evaluation, or diverged in more seeds than plain averages
    OPTIMIZER.better cells that are not, and above at some evaluation

Cells are kept in a folder until all are there, so that a run that was cut off goes on.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks import facts
from benchmarks.command import cases
from benchmarks.recipes import NeverWorseRecipe
from benchmarks.results import Figures, Run

FIGURES = ("worst", "worst_round", "worst_error", "end", "end_error")


def measure(recipe: NeverWorseRecipe, kept: Path) -> list[Run]:
    """Measure all cells of the recipe's patterns except those stored in `kept`, which is emptied when all are done.

    Raises:
        RuntimeError: one failed.
    """
    folder = kept / key(recipe)
    patterns = [word for pattern in recipe.cells for word in ("--cells", pattern)]
    given = [word for each in recipe.set for word in ("--set", each)]
    words = ["--seeds", str(recipe.pairs), "--rounds", str(recipe.rounds), "--jobs", str(recipe.jobs), *given]
    runs = cases(["bench", "never-worse", *patterns, *words, "--keep", str(folder.absolute()), "--json"], "never-worse")
    for path in (*folder.iterdir(), folder):
        path.rmdir() if path.is_dir() else path.unlink()
    return runs


def key(recipe: NeverWorseRecipe) -> str:
    """Return the folder's name for equal recipe and commit."""
    return hashlib.sha256(msgspec.json.encode([recipe, facts.gather().commit])).hexdigest()[:16]


def name(run: Run) -> str:
    """Return the name of a cell, as figures have it."""
    cell: str = run["cell"]
    return cell.replace("/", "-")


def figures(runs: Sequence[Run]) -> Figures:
    """Return the figures of the cells."""
    table: Figures = {}
    for run in runs:
        looks = max(1, len(run["rounds"]))
        table |= {f"{name(run)}.{figure}": run[figure] for figure in FIGURES}
        table |= {
            f"{name(run)}.plain": run["plain_end"],
            f"{name(run)}.below": run["below"] / looks,
            f"{name(run)}.above": run["above"] / looks,
            f"{name(run)}.committed": run["committed"][0],
        }
    for optimizer in (*dict.fromkeys(run["cell"].split("/")[1] for run in runs), "all"):
        own = [run for run in runs if optimizer in ("all", run["cell"].split("/")[1])]
        table |= {
            f"{optimizer}.cells": float(len(own)),
            f"{optimizer}.worse": float(sum(run["worse"] for run in own)),
            f"{optimizer}.better": float(sum(better(run) for run in own)),
        }
    return table


def better(run: Run) -> bool:
    """Return whether the default is better at some evaluation of this cell and worse at none."""
    return not run["worse"] and (run["above"] > 0 or run["diverged"][0] < run["diverged"][1])


def spread(runs: Sequence[Run]) -> dict[str, float]:
    """Return the standard deviation over seeds of the differences."""
    return {
        f"{name(run)}.{figure}": run[f"{figure}_error"] * math.sqrt(len(run["seeds"]))
        for run in runs
        for figure in ("worst", "end")
        if run[f"{figure}_error"] is not None
    }
