"""Does each member gain? A swarm's text model, whose nodes have authors' texts, each author's lone model, and a central model.

All models have the same start, schedule and number of local steps. The swarm is simulated, with the authors' files dealt out to its nodes;
a lone model learns from one author's file, with a node's batch; the central one from all files, with the batches of all nodes together
in each step. What counts is bits per byte on an author's held-out text, the same bytes for all. The swarm's model is the own model of the
node whose mean over the authors is worst. Any model may overfit, so of each the best of LOOKS looks during the run counts, by the
mean over the very bytes that it is compared on: what early stopping gives, and a little more.

    AUTHOR.lone, AUTHOR.swarm, AUTHOR.central
                    bits per byte on that author's held-out text
    AUTHOR.lone_end the lone model at the end of the run
    AUTHOR.gain     how much better the swarm's model is there than the lone one
    mean.…          means over the authors of these
    swarm.least_gain
                    of any author
    swarm.gap       how much worse the swarm's model is than the central one, mean over the authors
    swarm.apart     how much worse its worst node is than its best
    swarm.stopped, central.stopped
                    after which local step the model was best
    swarm.end, central.end
                    mean over the authors at the end of the run
    swarm.bytes     sent by a node
    swarm.fewer     times fewer than a ring all-reduce of float32 gradients each step takes, 2(n − 1)/n · 4d a node and step

Figures of each model are stored in a folder until all are there, so that an interrupted run resumes. Within the training of a model it
does not: what was computed of that model is lost.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from benchmarks import data, facts, warm
from benchmarks.recipes import AuthorsRecipe
from benchmarks.results import Figures, Run
from starling.gossip.errors import GossipError
from starling.gossip.overlay.stages import stage
from starling.node.catalogues import task
from starling.node.config import presets
from starling.node.config.overlay import overlay_of
from starling.node.config.schema import Manifest, NumericsSection
from starling.node.engine.initial_model import initial
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from starling.node.simulate import engines, rules
from starling.node.simulate.schema import Scenario, manifest
from starling.node.tasks.api import Source
from starling.node.tasks.evaluate import Result, evaluate

SWARM, CENTRAL = "swarm", "central"
EVALUATION_BATCH = 64
LOOKS = 10
Look = list[Tensor]
"""Models (d,) of nodes at one moment."""
_SAY_S = 60.0  # seconds between two lines of progress


def measure(recipe: AuthorsRecipe, kept: Path) -> list[Run]:
    """Train and measure all models, except those with figures in `kept`, which is emptied when all are measured.

    Raises:
        RuntimeError: a run failed, diverged, or its data are not there.
    """
    source = data.find(recipe.data)
    learned = {"name": recipe.data, "sha256": data.fingerprint(source)}
    with tempfile.TemporaryDirectory() as files:
        authors = cut(source, Path(files), recipe.text_bytes)
        return _measure(recipe, kept, learned, Path(files), authors)


def cut(source: Path, files: Path, text_bytes: int | None) -> list[str]:
    """Copy the beginning of every text; return their names, in order."""
    for path in source.glob("*.txt"):
        (files / path.name).write_bytes(path.read_bytes()[:text_bytes])
    return sorted(path.stem for path in files.iterdir())


def _measure(recipe: AuthorsRecipe, kept: Path, learned: dict[str, str], files: Path, authors: Sequence[str]) -> list[Run]:
    folder = kept / key(recipe, learned)
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for case in (SWARM, CENTRAL, *authors):
        path = folder / f"{case}.json"
        if not path.exists():
            path.write_bytes(msgspec.json.encode(_run(recipe, case, files, authors) | {"data": learned}))
        runs.append(msgspec.json.decode(path.read_bytes(), type=Run))
        print(f"{case}: {_best(_curve(runs[-1])).mean:.4f}, {runs[-1]['wall_s']:.0f} s", file=sys.stderr)
    for path in (*folder.iterdir(), folder):
        path.rmdir() if path.is_dir() else path.unlink()
    return runs


def key(recipe: AuthorsRecipe, learned: dict[str, str]) -> str:
    """Return the folder's name for equal recipe, scenario, data and commit."""
    parts = (msgspec.json.encode([recipe, learned, facts.gather().commit]), (facts.ROOT / recipe.scenario).read_bytes())
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def assignments(recipe: AuthorsRecipe, case: str, files: Path) -> tuple[str, ...]:
    """Return `--set` values of the swarm, the central model, or an author's model: `files` is the folder."""
    rounds = recipe.steps // recipe.local_steps
    steps = (f"pace.local_steps={recipe.local_steps}", f"pace.rounds={rounds}")
    looks = f"pace.evaluate_every={max(1, rounds // LOOKS)}"
    common = (*recipe.set, f"simulate.seed={recipe.seed}", f"simulate.nodes={recipe.nodes}", *steps, looks)
    match case:
        case "swarm":
            return (f"task.path={files}", *common, f"task.batch_size={recipe.batch_size}", *recipe.swarm)
        case "central":
            path, batch, own = files, recipe.batch_size * recipe.nodes, recipe.central
        case author:
            path, batch, own = files / f"{author}.txt", recipe.batch_size, recipe.lone
    return (f"task.path={path}", *common, f"task.batch_size={batch}", "partition.shards=1", *own)


def scenario(recipe: AuthorsRecipe, case: str, files: Path) -> Scenario:
    """Return the scenario that is simulated, or that of a node that trains alone.

    Raises:
        ConfigError: a wrong key or value.
    """
    return presets.load(Scenario, facts.ROOT / recipe.scenario, assignments(recipe, case, files))


def steps(agreed: Manifest, members: int) -> int:
    """Return the local steps of a whole run: rounds that only average have none."""
    graph = overlay_of(agreed)
    return agreed.pace.local_steps * sum(stage(graph, members, number).local for number in range(agreed.pace.rounds))


def _run(recipe: AuthorsRecipe, case: str, files: Path, authors: Sequence[str]) -> Run:
    before, began = facts.load(), time.monotonic()
    torch.set_num_threads(1)
    chosen = scenario(recipe, case, files)
    agreed = manifest(chosen)
    if (done := steps(agreed, recipe.nodes if case == SWARM else 1)) != recipe.steps:
        raise RuntimeError(f"{case}: must do steps = {recipe.steps}, got {done} by pace and overlay")
    try:
        looks, more = _swarm(recipe, chosen) if case == SWARM else (_alone(recipe, agreed, case), {})
    except GossipError as error:
        raise RuntimeError(f"{case}: {error}") from error
    trained = time.monotonic() - began
    judges = {name: files / f"{name}.txt" for name in (authors if case in {SWARM, CENTRAL} else [case])}
    bits = [_scores(agreed, look, judges) for look in looks]
    samples = agreed.task.batch_size * (recipe.nodes if case == SWARM else 1)
    return {
        "case": case,
        "bits": bits,
        "steps": recipe.steps,
        "samples_a_step": samples,
        **more,
        "parameters": looks[0][0].numel(),
        "load": [before, facts.load()],
        "train_s": round(trained, 2),
        "wall_s": round(time.monotonic() - began, 2),
    }


def _swarm(recipe: AuthorsRecipe, chosen: Scenario) -> tuple[list[Look], dict[str, Any]]:
    """Return the nodes' models (d,) at every look, equal ones once, and the bytes sent."""
    rules.check_one(chosen)
    engines.check(chosen)
    looks: list[Look] = []

    def seen(number: int, x: Tensor) -> None:
        if number:
            equal = all(torch.equal(row, x[0]) for row in x)
            looks.append(list((x[:1] if equal else x).clone().unbind()))

    with _autocast(recipe):
        outcome = engines.simulate(chosen, _reporter(SWARM, chosen.pace.rounds), seen)
    if outcome.diverged is not None:
        raise RuntimeError(f"{SWARM}: diverged after {outcome.diverged} rounds")
    row = outcome.rows[-1]
    curve = [[row.round, float(f"{row.mean:.5g}"), float(f"{row.consensus_distance:.4g}")] for row in outcome.rows]
    return looks, {"bytes_per_node": row.bytes_per_node, "counts": outcome.counts, "curve": curve}


def _alone(recipe: AuthorsRecipe, agreed: Manifest, case: str) -> list[Look]:
    """Return the model (d,) that one node's engine trains, at every look."""
    looks: list[Look] = []
    engine, pace, say = Worker(), agreed.pace, _reporter(case, agreed.pace.rounds)
    numerics = NumericsSection(precision=recipe.precision)
    warm.ask(engine, calls.Open(agreed, "", 0, "cpu", 1, "", "node", numerics=numerics))
    for number in range(pace.rounds):
        warm.ask(engine, calls.Train(number, pace.local_steps))
        warm.ask(engine, calls.Mix(number))
        if (number + 1) % pace.evaluate_every == 0 or number + 1 == pace.rounds:
            looks.append([engine.vector])
        say(number + 1, f"{pace.local_steps} steps each")
    return looks


def _reporter(case: str, rounds: int) -> Callable[[int, str], None]:
    """Return a line of progress now and then."""
    began = last = time.monotonic()

    def say(done: int, line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _SAY_S:
            last = time.monotonic()
            print(f"  {case}: round {done} of {rounds} after {last - began:.0f} s, {line}", file=sys.stderr, flush=True)

    return say


def _autocast(recipe: AuthorsRecipe) -> AbstractContextManager[Any]:
    """Return the autocast of `numerics.precision`, which rows of an array lack. Parameters change, so copies are not cached."""
    enabled = recipe.precision == "bfloat16"
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled, cache_enabled=False)


def _scores(agreed: Manifest, look: Look, judges: Mapping[str, Path]) -> list[dict[str, float]]:
    """Return the bits per byte of every model of a look on every author's file."""
    return [{name: round(score(agreed, model, file), 6) for name, file in judges.items()} for model in look]


def score(agreed: Manifest, vector: Tensor, file: Path) -> float:
    """Return the bits per byte of a model (d,) on the held-out tenth of one file, in float32."""
    part = task(agreed.task.kind, agreed.task.params())
    model = initial(part, agreed)
    nn.utils.vector_to_parameters(vector, model.parameters())
    data = part.data(Source(file, agreed.partition, 0, agreed.seed), "cpu")
    *_, result = evaluate(part, model, data, EVALUATION_BATCH)
    assert isinstance(result, Result)
    return result.value


COLUMNS = ("lone", "lone_end", "swarm", "central", "gain")


class _Measured(NamedTuple):
    """Measurements of the models of a case at one look."""

    bits: dict[str, float]  # value of the worst node
    mean: float  # over them
    apart: float  # means of the nodes
    step: int  # number of local steps done


def _curve(run: Run) -> list[_Measured]:
    """Return all evaluations of a run, in order."""
    curve = []
    for number, look in enumerate(run["bits"], 1):
        means = [fmean(bits.values()) for bits in look]
        worst = max(means)
        step = run["steps"] * number // len(run["bits"])
        curve.append(_Measured(look[means.index(worst)], worst, worst - min(means), step))
    return curve


def _best(curve: Sequence[_Measured]) -> _Measured:
    return min(curve, key=lambda look: look.mean)


def _row(lone: Sequence[_Measured], swarm: float, central: float) -> dict[str, float]:
    """Return the columns of one author."""
    best = _best(lone).mean
    return dict(zip(COLUMNS, (best, lone[-1].mean, swarm, central, best - swarm), strict=True))


def figures(recipe: AuthorsRecipe, runs: Sequence[Run]) -> Figures:
    """Return the figures of the runs."""
    curves = {run["case"]: _curve(run) for run in runs}
    (sent,) = (run for run in runs if run["case"] == SWARM)
    swarm, central = _best(curves[SWARM]), _best(curves[CENTRAL])
    rows = {author: _row(curves[author], bits, central.bits[author]) for author, bits in swarm.bits.items()}
    mean = {name: fmean(row[name] for row in rows.values()) for name in COLUMNS}
    all_reduce = 2.0 * (recipe.nodes - 1) / recipe.nodes * 4.0 * sent["parameters"] * sent["steps"]
    table: Figures = {f"{group}.{name}": value for group, row in [*rows.items(), ("mean", mean)] for name, value in row.items()}
    return table | {
        "swarm.least_gain": min(row["gain"] for row in rows.values()),
        "swarm.gap": mean["swarm"] - mean["central"],
        "swarm.apart": swarm.apart,
        "swarm.stopped": swarm.step,
        "swarm.end": curves[SWARM][-1].mean,
        "central.stopped": central.step,
        "central.end": curves[CENTRAL][-1].mean,
        "swarm.bytes": sent["bytes_per_node"],
        "swarm.fewer": all_reduce / sent["bytes_per_node"],
    }
