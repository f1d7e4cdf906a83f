"""Does the correction pay? Every method in every cell of a grid: split of the data, optimiser, with or without faults.

All runs are of one process, so that files are read once. The metric is the mean over nodes at the end, as the scenario's task has it.
Figures, over seeds:

    SPLIT-OPTIMIZER-FAULTS.METHOD
                    the metric's mean; none if a seed diverged
    OPTIMIZER-METHOD.gain
                    how much better than the first method it is, mean over the cells of that optimiser; none if either diverged in one
    OPTIMIZER-METHOD.least
                    the least of these
    OPTIMIZER-METHOD.better, .worse
                    cells in which it is, by more than noise; what diverged is worse
    METHOD.bytes, .rounds
                    sent by a node in calm cells, mean; its rounds
    METHOD.bytes_ratio
                    to the first method's bytes

Noise of a difference is NOISE standard deviations of it, √(s² + s₀²) with the two methods' standard deviations over seeds.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from benchmarks import data, facts
from benchmarks.recipes import TrackingRecipe
from benchmarks.results import Figures, Run
from starling.gossip.errors import GossipError
from starling.node.simulate.api import simulate

NOISE = 2.0
FAULTS = ("calm", "faults")
BETTER, WORSE, NEITHER = "▲", "▼", ""


def cells(recipe: TrackingRecipe) -> Iterator[tuple[str, str, str]]:
    """Return (split, optimiser, faults) of each cell."""
    return itertools.product(recipe.splits, recipe.optimizers, FAULTS)


def measure(recipe: TrackingRecipe) -> list[Run]:
    """Run every method in every cell.

    Raises:
        RuntimeError: a simulation failed, or its data are not there.
    """
    files = str(data.find(recipe.data)) if recipe.data else ""
    learned = {"data": {"name": recipe.data, "sha256": data.fingerprint(data.find(recipe.data))}} if files else {}
    return [_run(recipe, cell, method, files) | learned for cell in cells(recipe) for method in recipe.methods]


def assignments(recipe: TrackingRecipe, cell: tuple[str, str, str], method: str, files: str = "") -> dict[str, Any]:
    """Return the settings of one method in one cell: dotted key -> value."""
    split, optimizer, faults = cell
    share = 2 if method in recipe.halved else 1
    rounds = recipe.rounds // share
    given = [*recipe.set, *recipe.splits[split], *recipe.optimizers[optimizer], *recipe.methods[method]]
    given += [f"pace.rounds={rounds}", f"pace.local_steps={recipe.local_steps * share}", f"pace.evaluate_every={rounds}"]
    if faults != FAULTS[0]:
        given += [f"faults.loss={recipe.loss}", "faults.tries=1"]
        if recipe.crashes:
            half = rounds // 2
            given += ["faults.crash=1", f"faults.churn_from={half}", f"faults.churn_until={half + recipe.crashes}"]
    given += [f"task.path={files}"] if files else []
    return {key: _value(text) for key, _, text in (word.partition("=") for word in given)}


def _value(text: str) -> Any:
    """Parse a value as `--set` does: TOML, else a bare word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _run(recipe: TrackingRecipe, cell: tuple[str, str, str], method: str, files: str) -> Run:
    before = facts.load()
    try:
        runs = simulate(facts.ROOT / recipe.scenario, seeds=recipe.seeds, set=assignments(recipe, cell, method, files))
    except GossipError as error:
        raise RuntimeError(f"{'-'.join(cell)}.{method}: {error}") from error
    if runs.failed:
        raise RuntimeError(f"{'-'.join(cell)}.{method}: {runs.failed[0].failure.error()}")
    outcomes: list[dict[str, Any]] = json.loads(runs.to_json())["runs"]
    last = [outcome["rows"][-1] for outcome in outcomes]
    diverged = sum(outcome["diverged"] is not None for outcome in outcomes)
    ends = [float(f"{row['mean']:.5g}") for row in last]
    print(f"{'-'.join(cell)}.{method}: {ends}, {diverged} diverged", file=sys.stderr)
    return {
        "cell": "-".join(cell),
        "optimizer": cell[1],
        "faults": cell[2],
        "method": method,
        "load": [before, facts.load()],
        "metric": outcomes[0]["metric"],
        "higher_is_better": outcomes[0]["higher_is_better"],
        "ends": ends,
        "diverged": diverged,
        "bytes": [row["bytes_per_node"] for row in last],
        "rounds": last[0]["round"],
        "wall_s": round(sum(outcome["wall"]["seconds"] for outcome in outcomes), 2),
    }


def figures(recipe: TrackingRecipe, runs: Sequence[Run]) -> Figures:
    """Return the figures of the runs."""
    first, *others = recipe.methods
    table: Figures = {f"{run['cell']}.{run['method']}": _end(run) for run in runs}
    deviations = spread(recipe, runs)
    sign = 1.0 if runs[0]["higher_is_better"] else -1.0
    for optimizer in recipe.optimizers:
        names = ["-".join(cell) for cell in cells(recipe) if cell[1] == optimizer]
        for method in others:
            ends = [(table[f"{name}.{method}"], table[f"{name}.{first}"]) for name in names]
            gains = [sign * (end - base) for end, base in ends if end is not None and base is not None]
            marks = [mark(recipe, runs[0]["higher_is_better"], table, deviations, name, method) for name in names]
            whole = len(gains) == len(names)
            table |= {
                f"{optimizer}-{method}.gain": fmean(gains) if whole else None,
                f"{optimizer}-{method}.least": min(gains) if whole else None,
                f"{optimizer}-{method}.better": float(marks.count(BETTER)),
                f"{optimizer}-{method}.worse": float(marks.count(WORSE)),
            }
    sent = {method: [run for run in runs if run["method"] == method and run["faults"] == FAULTS[0]] for method in recipe.methods}
    mean_bytes = {method: fmean(fmean(run["bytes"]) for run in calm) for method, calm in sent.items()}
    for method, calm in sent.items():
        table |= {
            f"{method}.bytes": mean_bytes[method],
            f"{method}.rounds": float(calm[0]["rounds"]),
            f"{method}.bytes_ratio": mean_bytes[method] / mean_bytes[first],
        }
    return table


def spread(recipe: TrackingRecipe, runs: Sequence[Run]) -> dict[str, float]:
    """Return the standard deviation over seeds of the final values of every method in every cell."""
    if len(recipe.seeds) < 2:
        return {}
    return {f"{run['cell']}.{run['method']}": stdev(run["ends"]) for run in runs if not run["diverged"]}


def mark(recipe: TrackingRecipe, higher_is_better: bool, table: Figures, deviations: Mapping[str, float], cell: str, method: str) -> str:
    """Return BETTER or WORSE if the difference to the first method exceeds noise, else NEITHER. Diverged is worse, unless both did."""
    own, base = (f"{cell}.{each}" for each in (method, next(iter(recipe.methods))))
    if table[own] is None or table[base] is None:
        return NEITHER if table[own] is table[base] else WORSE if table[own] is None else BETTER
    gain = (table[own] - table[base]) * (1.0 if higher_is_better else -1.0)
    if abs(gain) <= NOISE * math.hypot(deviations.get(own, 0.0), deviations.get(base, 0.0)):
        return NEITHER
    return BETTER if gain > 0 else WORSE


def _end(run: Run) -> float | None:
    return None if run["diverged"] else fmean(run["ends"])
