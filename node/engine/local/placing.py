"""From the call that opens an engine to a model on this machine: device, memory, task, data, module, ranks.

Shapes: d parameters.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from starling.gossip.binding import obstacle
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.node.catalogues import task
from starling.node.config import memory
from starling.node.config.schema import Manifest
from starling.node.engine.crew.cut import Cut, blocks_of, cut
from starling.node.engine.crew.inputs import Elsewhere
from starling.node.engine.devices import device
from starling.node.engine.exchange.adversary import poisoned
from starling.node.engine.island import Island
from starling.node.engine.local.local_model import LocalModel
from starling.node.engine.rehearsal import calling, rehearse
from starling.node.engine.start import initial
from starling.node.rpc.calls import Open
from starling.node.tasks.api import Data, Source, Task
from starling.node.tasks.reserved import data_of


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the model is computed."""

    device: str
    memory: int  # bytes that a model may take there


def machine_of(opening: Open, manifest: Manifest) -> Machine:
    """Return where the model is computed. Raises ConfigError: a device is missing, or memory for the least that it takes."""
    chosen = device(opening.device)
    there = torch.cuda.mem_get_info()[1] if chosen == "cuda" else memory.there()
    if opening.stage < 0:
        memory.check(manifest, there)
    return Machine(chosen, there)


def model_of(opening: Open, manifest: Manifest, machine: Machine) -> tuple[LocalModel, Cut | None]:
    """Make the task, its data and its model, and try them where they are the owner's."""
    kind = manifest.task.kind
    made: Task = calling(kind, "making the task", lambda: task(kind, manifest.task.params()))
    data = _data(opening, manifest, made, machine)
    blocks = cut(made, manifest, opening.stage, machine.memory) if opening.stage >= 0 else None

    checked = False

    def fresh() -> nn.Module:
        nonlocal checked
        if blocks is not None:
            return blocks_of(made, manifest, blocks).to(machine.device)
        module = initial(made, manifest, opening.start, checked=checked).to(machine.device)
        checked = True
        return module

    try:
        model = LocalModel(manifest, opening.node, made, data, fresh, machine.device)
    except ValueError as error:
        raise ConfigError(f"task.kind: {kind!r}: {error}") from error
    if blocks is not None and (why := obstacle(model.module, model.layout)):
        raise ConfigError(
            f"crew.stages: must be 1 for models that are not in float32 or have averaged buffers, {why}; try model.float()"
        )
    if blocks is None:
        size = model.layout.dim * model.layout.dtype.itemsize
        size += sum(each.nbytes for each in model.module.parameters() if not each.requires_grad)
        memory.check(manifest, machine.memory, size)
        if ":" in kind:
            rehearse(kind, made, model.module, data, manifest.task.batch_size)
    return model, blocks


def _data(opening: Open, manifest: Manifest, made: Task, machine: Machine) -> Data:
    if opening.stage > 0:
        return Elsewhere()
    path = Path(opening.data) if opening.data else None
    source = Source(path, manifest.partition, opening.shard, manifest.seed)
    data = calling(manifest.task.kind, "data()", lambda: data_of(made, source, machine.device, manifest.mix.own))
    return poisoned(opening, data)


def rehearsal_batch(model: LocalModel) -> Any:
    """Return a training batch to try things with, the same each time."""
    return model.data.batch(model.manifest.task.batch_size, generator(0, "rehearsal"))


def island_of(opening: Open, model: LocalModel) -> Island | None:
    """Start the other ranks; None: there are none."""
    return None if opening.ranks == 1 else Island(opening, model.device, model.module, rehearsal_batch(model))
