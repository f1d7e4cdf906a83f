"""Scenario files in the simulator: `starling simulate SCENARIO.toml --json`, for every case of a recipe.

Figures of a case `c`, over its seeds; the metric is the mean over nodes, as the scenario's task has it:

    c.final         median of what it is at the end
    c.worst         of the worst seed at the end
    c.floor         median over the last quarter of the evaluations of all seeds
    c.rounds        done at the end, mean
    c.bytes         sent by a node at the end, mean
    c.diverged      seeds that ended in numbers that are not finite
    c.rounds_to_t, c.bytes_to_t, c.seconds_to_t
                    medians of when it first was at target t: rounds, bytes sent by a node, virtual seconds; none if a seed never was
    c.fewer         times fewer bytes than a ring all-reduce of float32 gradients each step takes, 2(n − 1)/n · 4d a node and step, where
                    the recipe says how many members and steps; none if nothing was sent
    c.exposed, c.named, c.accused
                    pairs of an honest node and a Byzantine one that exchanged, those whose honest node refused the other, and pairs of
                    honest nodes of which one refused the other, sums over seeds; where pairs are defended
    c.named_after   median round of the first refusals of Byzantine nodes; none if there is none
    c.worst_node    of all seeds at the end; where the recipe asks who was named, as the four above
    c.wall_s        the longest run on this machine, where the recipe asks for it

What diverged has no final, worst and floor. Where a case `a` is compared with `b`:

    a/b.floor       ratio of the floors
    a/b.bytes_to_t  ratio of the bytes, for every target
    a/b.transient   rounds after which a is never again twice as far off as b, medians over seeds; none if it still is at the end. Of
                    errors only, not where higher is better
    a/b.ahead       how much better the mean of a's nodes is at the end than b's best node, the least of all seeds
    a/b.ahead_worst the same of a's worst node
    folds.ahead     how much better the mean of the first of `folds` is at the end than the best of the others, the least of all seeds

    attack_success  how often the honest do what an attack wants at the end, mean over seeds; of attacks with such an aim

Equal scenarios and seeds give equal figures on one machine, but for wall_s. On a processor of another maker sums round in another order,
and figures of learning differ in the third digit: compare with a tolerance (`benchmarks.results.compare`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from benchmarks import data, facts, warm
from benchmarks.command import starling
from benchmarks.recipes import SimulateRecipe
from benchmarks.results import Figures, Run

CURVE = ("round", "seconds", "bytes_per_node", "alive", "mean", "min", "max", "mean_model", "consensus_distance")
Curve = dict[str, list[float]]
_TAIL = 0.25  # of the evaluations


def measure(recipe: SimulateRecipe) -> list[Run]:
    """Run every case: a process each, which goes through the seeds.

    Raises:
        RuntimeError: a simulation failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = data.find(recipe.data) if recipe.data else None
        warmed = warm.write(recipe, files, Path(folder)) if recipe.warm else None
        return [run for case in recipe.cases for run in run_case(recipe, case, warmed)]


def run_case(recipe: SimulateRecipe, case: str, warmed: tuple[Path, str] | None = None) -> list[Run]:
    """Run one case for each seed; `warmed` is the file written by `benchmarks.warm.write`.

    Raises:
        RuntimeError: it failed.
    """
    before, files = facts.load(), data.find(recipe.data) if recipe.data else None
    start, digest = warmed or (None, None)
    document = starling(arguments(recipe, case, files, start), case)
    learned = {"data": {"name": recipe.data, "sha256": data.fingerprint(files)}} if files is not None else {}
    learned |= {"start": digest} if digest is not None else {}
    load = [before, facts.load()]
    return [_run(case, load, seed, one) | learned for seed, one in zip(recipe.seeds, document["runs"], strict=True)]


def _run(case: str, load: list[float], seed: int, run: dict[str, Any]) -> Run:
    keys = ("metric", "higher_is_better", "parameters", "counts", "undone", "diverged")
    curve = {key: [_short(row[key]) for row in run["rows"]] for key in CURVE}
    if run["rows"][-1]["attack_success"] is not None:
        curve["attack_success"] = [_short(row["attack_success"] or 0.0) for row in run["rows"]]
    return {
        "case": case,
        "seed": seed,
        "load": load,
        **{key: run[key] for key in keys},
        **({"refusals": run["refusals"], "bad": run["bad"]} if run["refusals"] else {}),
        "wall_s": round(run["wall"]["seconds"], 2),
        "curve": curve,
    }


def _short(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.5g}")


def arguments(recipe: SimulateRecipe, case: str, files: Path | None = None, start: Path | None = None) -> list[str]:
    """Return the command line of one case, without `starling`; `files` are what its task learns from, `start` is the file of a model."""
    own = tuple(each.replace(warm.PLACE, str(start)) for each in recipe.cases[case])
    sets = (*recipe.set, *own, f"sweep.seeds=[{', '.join(map(str, recipe.seeds))}]")
    sets = sets if files is None else (f"task.path={files}", *sets)
    return ["simulate", recipe.scenario, "--json", "--no-progress", *(word for one in sets for word in ("--set", one))]


def figures(recipe: SimulateRecipe, runs: Sequence[Run]) -> Figures:
    """Return the figures of the runs."""
    table: Figures = {}
    for case in recipe.cases:
        of_case = [run for run in runs if run["case"] == case]
        table |= {f"{case}.{name}": value for name, value in _figures(recipe, of_case)}
    for a, b in recipe.compare:
        for name in ("floor", *(f"bytes_to_{target:g}" for target in recipe.targets)):
            first, second = table[f"{a}.{name}"], table[f"{b}.{name}"]
            table[f"{a}/{b}.{name}"] = first / second if first is not None and second else None
        if not runs[0]["higher_is_better"]:
            table[f"{a}/{b}.transient"] = transient(*([r["curve"] for r in runs if r["case"] == case] for case in (a, b)))
    for pair in recipe.ahead:
        of_pair = [[run for run in runs if run["case"] == case] for case in pair]
        for name, value in zip(("ahead", "ahead_worst"), _ahead(*of_pair), strict=True):
            table[f"{'/'.join(pair)}.{name}"] = value
    if recipe.folds is not None:
        swarms, lone = ([run for run in runs if run["case"] in cases] for cases in recipe.folds)
        table["folds.ahead"] = _over_folds(swarms, lone, sorted({run["seed"] for run in runs}))
    return table


def _ahead(runs: Sequence[Run], others: Sequence[Run]) -> tuple[float | None, float | None]:
    """Return the lead of the nodes' mean and of the worst node, the least of all seeds; None if one diverged."""
    if (sign := _sign(*runs, *others)) is None:
        return None, None
    worst, best = ("min", "max") if sign > 0.0 else ("max", "min")
    ends = [({key: values[-1] for key, values in each["curve"].items()} for each in side) for side in (runs, others)]
    both = list(zip(*ends, strict=True))
    mean, least = (min(sign * (own[key] - others_best[best]) for own, others_best in both) for key in ("mean", worst))
    return mean, least


def _over_folds(runs: Sequence[Run], others: Sequence[Run], seeds: Sequence[int]) -> float | None:
    """Return the lead of the mean over the first cases over the best of the others, the least of all seeds; None if one diverged."""
    if (sign := _sign(*runs, *others)) is None:
        return None
    ends = [[[sign * each["curve"]["mean"][-1] for each in side if each["seed"] == seed] for side in (runs, others)] for seed in seeds]
    return min(fmean(swarms) - max(best) for swarms, best in ends)


def _sign(*runs: Run) -> float | None:
    """Return 1 if higher is better, else −1; None if a run diverged."""
    if any(run["diverged"] is not None for run in runs):
        return None
    return 1.0 if runs[0]["higher_is_better"] else -1.0


def spread(recipe: SimulateRecipe, runs: Sequence[Run]) -> dict[str, float]:
    """Return the standard deviation over seeds of every figure that several seeds have, except wall_s, which depends on the machine."""
    if len(recipe.seeds) < 2:
        return {}
    by_seed = [figures(recipe, [run for run in runs if run["seed"] == seed]) for seed in recipe.seeds]
    result = {}
    for name in by_seed[0]:
        values = [figure for each in by_seed if (figure := each[name]) is not None]
        if len(values) == len(by_seed) and not name.endswith(".wall_s"):
            result[name] = stdev(values)
    return result


def _figures(recipe: SimulateRecipe, runs: Sequence[Run]) -> Iterator[tuple[str, float | None]]:
    curves = [run["curve"] for run in runs]
    ends = [curve["mean"][-1] for curve in curves]
    better = runs[0]["higher_is_better"]
    diverged = sum(run["diverged"] is not None for run in runs)
    yield "final", None if diverged else median(ends)
    yield "worst", None if diverged else min(ends) if better else max(ends)
    yield "floor", None if diverged else median(value for curve in curves for value in tail(curve["mean"]))
    yield "rounds", fmean(curve["round"][-1] for curve in curves)
    yield "bytes", fmean(curve["bytes_per_node"][-1] for curve in curves)
    yield "diverged", float(diverged)
    if recipe.all_reduce is not None:
        nodes, steps = recipe.all_reduce
        each = 2.0 * (nodes - 1) / nodes * 4.0 * fmean(run["parameters"] for run in runs) * steps
        sent = fmean(curve["bytes_per_node"][-1] for curve in curves)
        yield "fewer", each / sent if sent else None
    for target in recipe.targets:
        at = [reached(curve["mean"], target, higher_is_better=better) for curve in curves]
        for name, key in (("rounds", "round"), ("bytes", "bytes_per_node"), ("seconds", "seconds")):
            got = [curve[key][where] for curve, where in zip(curves, at, strict=True) if where is not None]
            yield f"{name}_to_{target:g}", median(got) if len(got) == len(runs) else None
    if all("attack_success" in curve for curve in curves):
        yield "attack_success", fmean(curve["attack_success"][-1] for curve in curves)
    if recipe.named:
        yield from _named(runs)
    if recipe.timed:
        yield "wall_s", max(run["wall_s"] for run in runs)


def _named(runs: Sequence[Run]) -> Iterator[tuple[str, float | None]]:
    """What honest nodes knew of Byzantine ones."""
    for key in ("exposed", "named", "accused"):
        yield key, float(sum(run["counts"][key] for run in runs))
    rounds: list[int] = []
    for run in runs:
        first: dict[tuple[int, int], int] = {}
        for each in run.get("refusals", ()):
            if each["peer"] in run["bad"]:
                first.setdefault((each["node"], each["peer"]), each["round"])
        rounds += first.values()
    yield "named_after", float(median(rounds)) if rounds else None
    yield "worst_node", min(run["curve"]["min"][-1] for run in runs)


def transient(curves: Sequence[Curve], others: Sequence[Curve]) -> float | None:
    """Return the round after the last evaluation at which the median of `curves` is above twice that of `others`; None if that is the
    end.
    """
    curve, other = ([median(values) for values in zip(*(c["mean"] for c in each), strict=False)] for each in (curves, others))
    behind = [at for at, (a, b) in enumerate(zip(curve, other, strict=False)) if a > 2.0 * b]
    first = behind[-1] + 1 if behind else 0
    return float(curves[0]["round"][first]) if first < min(len(curve), len(other)) else None


def tail(values: Sequence[float]) -> Sequence[float]:
    """Return the last quarter, at least one."""
    return values[-max(1, int(len(values) * _TAIL)) :]


def reached(values: Sequence[float], target: float, *, higher_is_better: bool) -> int | None:
    """Return the first place at the target or beyond it."""
    return next((at for at, v in enumerate(values) if (v >= target if higher_is_better else v <= target)), None)
