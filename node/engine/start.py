"""The model that every node begins with: random, or read from the file of `task.start`."""

import shlex

from torch import Tensor, nn

from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.gossip.vector import finite
from starling.node.config import start
from starling.node.config.parts import shown
from starling.node.config.schema import Manifest
from starling.node.engine import fingerprint, tensor_file
from starling.node.engine.rehearsal import calling
from starling.node.tasks.api import Task


def initial(task: Task, manifest: Manifest, file: str = "") -> nn.Module:
    """A fresh model, on the CPU, equal at every node: of the manifest's seed, or its `task.start`, for which `file` is `start` of the
    node's settings.

    Raises ConfigError: the task is another one than the manifest's fingerprint says; or the file is missing, is another one, does not hold
    a model of this task, or is given where none is asked for.
    """
    kind = manifest.task.kind
    if file and not manifest.task.start:
        raise ConfigError(
            f"start: {shown(file)} is given, but this swarm begins with a random model; leave it out, `--set start=`, or found a swarm "
            f"that begins with it, `starling found --set task.start={shlex.quote(file)}`"
        )
    model = calling(kind, "model()", lambda: task.model(generator(manifest.seed, "model")))
    fingerprint.check(manifest, task, model)
    if manifest.task.start:
        name, data = start.read(manifest.task.start, file)
        try:
            tensors = tensor_file.tensors(data)
            _check(tensors, {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)})
        except ValueError as error:
            raise ConfigError(
                f"task.start: {shown(name)} {error}; needed is a model of task={kind}, as `starling export MODEL.safetensors` writes it"
            ) from error
        model.load_state_dict(tensors)
    return model


def _check(tensors: dict[str, Tensor], needed: dict[str, Tensor]) -> None:
    """Raises ValueError, in a few words, unless names, shapes and dtypes are those needed and all numbers finite."""
    if tensors.keys() != needed.keys():
        name = min(tensors.keys() ^ needed.keys())
        raise ValueError(f"{'lacks' if name in needed else 'has a foreign'} tensor {shown(name)}")
    for name, tensor in sorted(tensors.items()):
        if tensor.shape != needed[name].shape or tensor.dtype != needed[name].dtype:
            raise ValueError(f"has {name} as {_form(tensor)}, must be {_form(needed[name])}")
        if not finite(tensor):
            raise ValueError(f"holds numbers that are not finite, in {name}")


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
