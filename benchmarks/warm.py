"""An initial model that one node's engine has trained on the data of all nodes."""

from __future__ import annotations

from pathlib import Path

from benchmarks import data
from benchmarks.recipes import SimulateRecipe
from starling.node.config import presets
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from starling.node.simulate.schema import Scenario, manifest

PLACE = "START"
"""In a recipe's cases, the path of the file."""


def write(recipe: SimulateRecipe, files: Path | None, folder: Path) -> tuple[Path, str]:
    """Train by `recipe.warm`; return a safetensors file in `folder` and the beginning of its SHA-256.

    Raises:
        RuntimeError: the engine refused.
    """
    sets = (*recipe.set, *recipe.warm, "partition.shards=1")
    sets = sets if files is None else (f"task.path={files}", *sets)
    agreed, file = manifest(presets.load(Scenario, Path(recipe.scenario), sets)), folder / "start.safetensors"
    engine, pace = Worker(), agreed.pace
    ask(engine, calls.Open(agreed, "", 0, "cpu", 1, "", "warm"))
    for number in range(pace.rounds):
        ask(engine, calls.Train(number, pace.local_steps))
        ask(engine, calls.Mix(number))
    ask(engine, calls.Save(str(file)))
    return file, data.fingerprint(file)


def ask(engine: Worker, call: calls.Request) -> calls.Reply:
    """Send a call and return its reply.

    Raises:
        RuntimeError: the engine refused.
    """
    reply = engine.handle(call)
    while reply is None:
        reply = engine.step()
    if isinstance(reply, calls.Refused):
        raise RuntimeError(reply.reason)  # noqa: TRY004 — an answer, not a type
    return reply
