"""Evaluation in slices, so that a node goes on training while it measures itself, with normalisation statistics of its own data.

Running statistics of normalisation layers (BatchNorm) fit one set of parameters, which exchanges change, and differ between nodes with
different data. They are therefore not exchanged: before a model is evaluated or exported, they are set to the mean over `BATCHES` training
batches. Decision 18 has measurements.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from starling.node.tasks.api import Data, Owned, Task

BATCHES = 32  # training batches that the statistics are a mean over


@dataclass(frozen=True, slots=True)
class Result:
    """Mean of the task's metric (`value`) and of the loss over held-out samples."""

    value: float
    loss: float
    samples: int


def evaluate(task: Task, model: nn.Module, data: Data, batch: int, *, own: bool = False) -> Iterator[Result | None]:
    """Measure `model` on held-out data: None after each batch, then the result. `own`: on those like this node's, if they are known.

    Gradient mode is switched off, and eval mode on, within a slice only, so the caller may train another model in between. This model must
    not change until the end: pass a copy of one in training.
    """
    value, loss, samples = 0.0, 0.0, 0
    for held_out in data.like_own(batch) if own and isinstance(data, Owned) else data.held_out(batch):
        training = model.training
        model.eval()
        with torch.no_grad():
            part = task.score(model, held_out)
        model.train(training)
        value, loss, samples = value + part[0], loss + part[1], samples + part[2]
        yield None
    assert samples > 0, "a task's data hold out at least one sample"
    yield Result(value / samples, loss / samples, samples)


def tracking(model: nn.Module) -> list[Any]:
    """The layers with running statistics, in order: torch's, or others with the same attributes."""
    return [
        layer
        for layer in model.modules()
        if isinstance(getattr(layer, "running_mean", None), Tensor) and hasattr(layer, "reset_running_stats")
    ]


def estimate(task: Task, model: nn.Module, batches: Iterable[Any]) -> Iterator[None]:
    """Replace the statistics of `model` by their mean over `batches`, a batch at a time; other buffers, parameters and mode stay.

    Every other layer runs in evaluation mode: no dropout. Batches are consumed only if there are layers with statistics.
    """
    layers = tracking(model)
    if not layers:
        return
    momentum = [layer.momentum for layer in layers]
    counts = [layer.num_batches_tracked.clone() for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
    for number, batch in enumerate(batches):
        for layer in layers:
            layer.momentum = 1.0 / (number + 1)
        with _batch_statistics(model, layers), torch.no_grad():
            task.loss(model, batch)
        yield
    for layer, rate, count in zip(layers, momentum, counts, strict=True):
        layer.momentum = rate
        layer.num_batches_tracked.copy_(count)


@contextmanager
def comparing(model: nn.Module) -> Iterator[None]:
    """Evaluation mode in which layers normalise by the batch and no statistic changes, for losses of other nodes' parameters."""
    layers = tracking(model)
    held = [buffer.clone() for layer in layers for buffer in layer.buffers(recurse=False)]
    with _batch_statistics(model, layers):
        yield
    for buffer, before in zip((b for layer in layers for b in layer.buffers(recurse=False)), held, strict=True):
        buffer.copy_(before)


@contextmanager
def _batch_statistics(model: nn.Module, layers: list[Any]) -> Iterator[None]:
    modes = [(layer, layer.training) for layer in model.modules()]
    model.eval()
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


class TaskLoss(nn.Module):
    """A task's loss as a module, for `functional_call` to replace the parameters of its `model`."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._task = task

    def forward(self, batch: Any) -> Tensor:
        """Scalar."""
        return self._task.loss(self.model, batch)
