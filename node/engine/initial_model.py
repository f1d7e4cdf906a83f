"""The model that every node begins with: random, or read from the file of `task.start`."""

import shlex

from torch import nn

from starling.gossip.errors import ConfigError
from starling.node.config import initial_model
from starling.node.config.parts import shown
from starling.node.config.schema import Manifest
from starling.node.engine import fingerprint, model_file, tensor_file
from starling.node.engine.task_smoke_test import fresh_model
from starling.node.tasks.api import Task


def initial(task: Task, manifest: Manifest, file: str = "", *, checked: bool = False) -> nn.Module:
    """Return a fresh model, on the CPU, equal at every node: of the manifest's seed, or its `task.start`, for which `file` is `start`
    of the node's settings. `checked`: the task made one before that was compared with the fingerprint, which takes time for a large
    base.

    Raises ConfigError: the task is another one than the manifest's fingerprint says; or the file is missing, is another one, does not hold
    a model of this task, or is given where none is asked for.
    """
    kind = manifest.task.kind
    if file and not manifest.task.start:
        raise ConfigError(
            f"start: {shown(file)} is given, but this swarm begins with a random model; leave it out, `--set start=`, or create a swarm "
            f"that begins with it, `starling create --set task.start={shlex.quote(file)}`"
        )
    model = fresh_model(kind, task, manifest.seed)
    if not checked:
        fingerprint.check(manifest, task, model)
    if manifest.task.start:
        name, data = initial_model.read(manifest.task.start, file)
        try:
            model_file.fill(model, tensor_file.tensors(data))
        except ValueError as error:
            raise ConfigError(
                f"task.start: {shown(name)} {error}; needed is a model of task={kind}, as `starling export MODEL.safetensors` writes it"
            ) from error
    return model
