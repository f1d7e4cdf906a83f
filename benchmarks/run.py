"""The runner: `python -m benchmarks.run [RECIPE …] [--out DIR]` measures, stores and judges; without a recipe all of them.

`--against STORED` compares one recipe with a stored result as well: a figure is outside where it differs by more than the tolerance, a
share of the stored value, and by more than three of its stored standard deviations over seeds.

Exit 0: every bound is met; 1: one is not, a figure is outside the tolerance, or a run failed; 2: wrong input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks import (
    authors,
    codecs,
    demos,
    facts,
    honest,
    large,
    loop,
    never_worse,
    overlap,
    overlays,
    recipes,
    results,
    rules,
    scaling,
    simulations,
    startup,
    tracking,
)
from benchmarks.recipes import (
    AuthorsRecipe,
    CodecRecipe,
    DemoRecipe,
    HonestRecipe,
    LargeRecipe,
    LoopRecipe,
    NeverWorseRecipe,
    NodeRoundRecipe,
    OverlapRecipe,
    OverlaysRecipe,
    RulesRecipe,
    SimulateRecipe,
    StartupRecipe,
    TrackingRecipe,
)
from benchmarks.results import Figures, Result, Run
from benchmarks.table import show

SIMULATED, TIMED = 0.02, 0.5
"""Tolerances: on another maker's processor figures of learning differ in the third digit; a clock measures the neighbours too."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run recipes; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help="path or name of a recipe; default: all")
    parser.add_argument("--out", type=Path, default=results.FOLDER, metavar="DIR", help="where results are stored")
    parser.add_argument("--against", type=Path, metavar="STORED", help="a stored result of the one recipe, to compare with")
    parser.add_argument(
        "--tolerance", type=float, metavar="SHARE", help=f"of the stored value; default {SIMULATED:g}, {TIMED:g} for what a clock measures"
    )
    chosen = parser.parse_args(arguments)
    try:
        stored = None if chosen.against is None else results.read(chosen.against)
        files = [recipes.find(name) for name in chosen.recipes] or recipes.everything()
        todo = [(path.stem, recipes.load(path)) for path in files]
    except ValueError as error:
        parser.error(str(error))
    if stored is not None and [name for name, _ in todo] != [stored.name]:
        parser.error(f"--against: {chosen.against} is a result of {stored.name}; name that recipe and no other")
    met = True
    for name, recipe in todo:
        print(f"{name}: {recipe.title}", file=sys.stderr)
        try:
            result = measure(name, recipe, chosen.out / "unfinished")
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            met = False
            continue
        path = results.save(result, chosen.out)
        print(f"{show(result)}\n")
        print(f"{name}: stored in {path}", file=sys.stderr)
        met = met and all(verdict.met is not False for verdict in results.verdicts(recipe, result.figures))
        if stored is not None:
            met = agrees(stored, result, chosen.tolerance) and met
    return 0 if met else 1


def agrees(stored: Result, measured: Result, tolerance: float | None) -> bool:
    """Return whether every figure is within the tolerance; print those that are not."""
    stored = msgspec.structs.replace(stored, spread=stored.spread or _spread(stored.recipe, stored.runs))
    outside = []
    for name in dict.fromkeys((*measured.figures, *stored.figures)):
        usual = TIMED if _timed(measured.recipe, name) else SIMULATED
        relative = usual if tolerance is None else tolerance
        outside += [each for each in results.compare(stored, measured, relative) if each.figure == name and not each.within]
    for each in outside:
        print(f"{measured.name}: {each.figure}: was {each.then}, is {each.now}, may differ by {each.tolerance:.3g}", file=sys.stderr)
    print(f"{measured.name}: {len(outside)} of {len(measured.figures)} figures outside", file=sys.stderr)
    return not outside


def _timed(recipe: recipes.Recipe, figure: str) -> bool:
    """Return whether a figure is a time: of simulations the duration, of demos all but learning, of others everything."""
    last = figure.rpartition(".")[2]
    match recipe:
        case SimulateRecipe() | OverlaysRecipe() | TrackingRecipe() | NeverWorseRecipe() | AuthorsRecipe():
            return last == "wall_s"
        case HonestRecipe():
            return last == "cpu_ratio"
        case DemoRecipe():
            return last not in demos.LEARNED
        case _:
            return True


def measure(name: str, recipe: recipes.Recipe, kept: Path) -> Result:
    """Measure one recipe; a long one keeps in a folder what it has, until it is done.

    Raises:
        RuntimeError: a run failed.
    """
    date, machine, before = datetime.now(UTC).isoformat(timespec="seconds"), facts.gather(), facts.load()
    runs, figures = _figures(recipe, kept)
    spread = _spread(recipe, runs)
    return Result(
        name=name, date=date, facts=machine, load=(before, facts.load()), recipe=recipe, figures=figures, runs=runs, spread=spread
    )


def _figures(recipe: recipes.Recipe, kept: Path) -> tuple[list[Run], Figures]:
    match recipe:
        case DemoRecipe():
            return (runs := demos.measure(recipe)), demos.figures(recipe, runs)
        case LargeRecipe():
            return (runs := large.measure(recipe)), large.figures(runs)
        case LoopRecipe():
            return (runs := loop.measure(recipe)), loop.figures(runs)
        case OverlapRecipe():
            return (runs := overlap.measure(recipe)), overlap.figures(runs)
        case StartupRecipe():
            return (runs := startup.measure(recipe)), startup.figures(runs)
        case OverlaysRecipe():
            return (runs := overlays.measure(recipe)), overlays.figures(recipe, runs)
        case SimulateRecipe():
            return (runs := simulations.measure(recipe)), simulations.figures(recipe, runs)
        case HonestRecipe():
            return (runs := honest.measure(recipe, kept)), honest.figures(recipe, runs)
        case TrackingRecipe():
            return (runs := tracking.measure(recipe)), tracking.figures(recipe, runs)
        case NeverWorseRecipe():
            return (runs := never_worse.measure(recipe, kept)), never_worse.figures(runs)
        case AuthorsRecipe():
            return (runs := authors.measure(recipe, kept)), authors.figures(recipe, runs)
        case CodecRecipe():
            return (runs := codecs.measure(recipe)), codecs.figures(runs)
        case RulesRecipe():
            return (runs := rules.measure(recipe)), rules.figures(runs)
        case NodeRoundRecipe():
            return (runs := scaling.measure(recipe)), scaling.figures(recipe, runs)


def _spread(recipe: recipes.Recipe, runs: list[Run]) -> dict[str, float]:
    match recipe:
        case SimulateRecipe():
            return simulations.spread(recipe, runs)
        case DemoRecipe():
            return demos.spread(recipe, runs)
        case TrackingRecipe():
            return tracking.spread(recipe, runs)
        case NeverWorseRecipe():
            return never_worse.spread(runs)
        case _:
            return {}


if __name__ == "__main__":
    sys.exit(main())
