"""The runner: `python -m benchmarks.run [RECIPE …] [--out DIR]` measures, stores and judges; without a recipe all of them.

Exit 0: every bound is met; 1: one is not, or a run failed; 2: wrong input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import codecs, demos, facts, overlays, recipes, results, rules, scaling, simulations, startup
from benchmarks.recipes import (
    CodecRecipe,
    DemoRecipe,
    NodeRoundRecipe,
    OverlaysRecipe,
    RulesRecipe,
    SimulateRecipe,
    StartupRecipe,
)
from benchmarks.results import Figures, Result, Run
from benchmarks.table import show


def main(arguments: Sequence[str] | None = None) -> int:
    """Run recipes; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help="path or name of a recipe; default: all")
    parser.add_argument("--out", type=Path, default=results.FOLDER, metavar="DIR", help="where results are stored")
    chosen = parser.parse_args(arguments)
    try:
        files = [recipes.find(name) for name in chosen.recipes] or recipes.everything()
        todo = [(path.stem, recipes.load(path)) for path in files]
    except ValueError as error:
        parser.error(str(error))
    met = True
    for name, recipe in todo:
        print(f"{name}: {recipe.title}", file=sys.stderr)
        try:
            result = measure(name, recipe)
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            met = False
            continue
        path = results.save(result, chosen.out)
        print(f"{show(result)}\n")
        print(f"{name}: stored in {path}", file=sys.stderr)
        met = met and all(verdict.met is not False for verdict in results.verdicts(recipe, result.figures))
    return 0 if met else 1


def measure(name: str, recipe: recipes.Recipe) -> Result:
    """Measure one recipe.

    Raises:
        RuntimeError: a run failed.
    """
    date, told, before = datetime.now(UTC).isoformat(timespec="seconds"), facts.gather(), facts.load()
    runs, figures = _figures(recipe)
    return Result(
        name=name, date=date, facts=told, load=(before, facts.load()), recipe=recipe, figures=figures, runs=runs
    )


def _figures(recipe: recipes.Recipe) -> tuple[list[Run], Figures]:
    match recipe:
        case DemoRecipe():
            return (runs := demos.measure(recipe)), demos.figures(recipe, runs)
        case StartupRecipe():
            return (runs := startup.measure(recipe)), startup.figures(runs)
        case OverlaysRecipe():
            return (runs := overlays.measure(recipe)), overlays.figures(recipe, runs)
        case SimulateRecipe():
            return (runs := simulations.measure(recipe)), simulations.figures(recipe, runs)
        case CodecRecipe():
            return (runs := codecs.measure(recipe)), codecs.figures(runs)
        case RulesRecipe():
            return (runs := rules.measure(recipe)), rules.figures(runs)
        case NodeRoundRecipe():
            return (runs := scaling.measure(recipe)), scaling.figures(recipe, runs)


if __name__ == "__main__":
    sys.exit(main())
