"""Place a model on this machine as the Open call says: device, memory, task, data, module.

Shapes: d parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.node.catalogues import task
from starling.node.config import consent, memory
from starling.node.config.schema import Manifest
from starling.node.engine.devices import device
from starling.node.engine.exchange.adversary import poisoned
from starling.node.engine.initial_model import initial
from starling.node.engine.local.local_model import LocalModel
from starling.node.engine.task_smoke_test import calling, try_task
from starling.node.rpc.calls import Open
from starling.node.tasks.api import Data, Source, Task
from starling.node.tasks.reserved import data_of


@dataclass(frozen=True, slots=True)
class Machine:
    """Device that computes the model."""

    device: str
    memory: int  # bytes that a model may take on this device


def machine_of(open_request: Open) -> Machine:
    """Return the device of the model. Raises ConfigError: it is missing."""
    chosen = device(open_request.device)
    return Machine(chosen, torch.cuda.mem_get_info()[1] if chosen == "cuda" else memory.available())


def model_of(open_request: Open) -> LocalModel:
    """Make the task, its data and its model, and try them if they are the owner's.

    Raises ConfigError: the manifest or the node's settings cannot be used on this machine.
    """
    manifest = open_request.manifest
    consent.find(manifest, open_request.code)
    machine = machine_of(open_request)
    memory.check(manifest, machine.memory)
    made = task_of(manifest)
    data = own_data(open_request, made, machine)
    checked = False

    def fresh() -> nn.Module:
        nonlocal checked
        module = initial(made, manifest, open_request.start, checked=checked).to(machine.device)
        checked = True
        return module

    model = local_model(open_request, made, data, fresh, machine)
    size = model.layout.dim * model.layout.dtype.itemsize
    size += sum(each.nbytes for each in model.module.parameters() if not each.requires_grad)
    memory.check(manifest, machine.memory, size)
    if ":" in manifest.task.kind:
        try_task(manifest.task.kind, made, model.module, data, manifest.task.batch_size)
    return model


def task_of(manifest: Manifest) -> Task:
    """Make the task. Raises ConfigError: it cannot be made."""
    kind = manifest.task.kind
    return calling(kind, "making the task", lambda: task(kind, manifest.task.params()))


def own_data(open_request: Open, made: Task, machine: Machine) -> Data:
    """Load this node's data. Raises ConfigError: they cannot be loaded."""
    manifest, path = open_request.manifest, Path(open_request.data) if open_request.data else None
    source = Source(path, manifest.partition, open_request.shard, manifest.seed)
    data = calling(manifest.task.kind, "data()", lambda: data_of(made, source, machine.device, manifest.mix.own))
    return poisoned(open_request, data)


def local_model(open_request: Open, made: Task, data: Data, fresh: Callable[[], nn.Module], machine: Machine) -> LocalModel:
    """Make a model that is not bound yet. Raises ConfigError: its parameters do not fit one vector."""
    manifest = open_request.manifest
    try:
        return LocalModel(manifest, open_request.node, made, data, fresh, machine.device)
    except ValueError as error:
        raise ConfigError(f"task.kind: {manifest.task.kind!r}: {error}") from error


def trial_batch(model: LocalModel) -> Any:
    """Return a training batch for trials, the same each time."""
    return model.data.batch(model.manifest.task.batch_size, generator(0, "rehearsal"))
