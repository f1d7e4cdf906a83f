"""Running statistics of normalisation layers (BatchNorm's running mean and variance): estimated anew from a node's own training data.

They belong to one set of parameters. Gossip changes the parameters between local steps, so those that training left behind fit no
longer, and nodes with different data have different ones. They are therefore not exchanged: before a model is evaluated or exported,
its statistics are the mean over `BATCHES` training batches. Decision 18 has the measurements. Models without such layers cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from starling.node.tasks.api import Task

BATCHES = 32
"""Training batches that the statistics are a mean over."""


class Tracking(Protocol):
    """What torch's normalisation layers with running statistics have in common."""

    momentum: float | None
    num_batches_tracked: Tensor
    training: bool

    def reset_running_stats(self) -> None:
        """As for an untrained layer."""
        ...

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The statistics and their count."""
        ...


def tracking(model: nn.Module) -> list[Tracking]:
    """The layers with running statistics, in order."""
    return [
        cast("Tracking", layer)
        for layer in model.modules()
        if isinstance(getattr(layer, "running_mean", None), Tensor) and hasattr(layer, "reset_running_stats")
    ]


def estimate(task: Task, model: nn.Module, batches: Iterable[Any]) -> Iterator[None]:
    """Replace the statistics of `model` by their mean over `batches`, a batch at a time; other buffers and the parameters stay.

    Args:
        task: runs the model by `loss`.
        model: in any mode, and left in it. Every other layer runs in evaluation mode: no dropout.
        batches: in the form `Task.loss` takes; consumed only if there are layers with statistics.
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
    """Evaluation mode in which normalisation goes by the batch, as in training, and no statistic changes.

    For losses of other nodes' parameters: there are no statistics of those.
    """
    layers = tracking(model)
    held = [buffer.clone() for layer in layers for buffer in layer.buffers(recurse=False)]
    with _batch_statistics(model, layers):
        yield
    for buffer, before in zip((b for layer in layers for b in layer.buffers(recurse=False)), held, strict=True):
        buffer.copy_(before)


@contextmanager
def _batch_statistics(model: nn.Module, layers: list[Tracking]) -> Iterator[None]:
    modes = [(layer, layer.training) for layer in model.modules()]
    model.eval()
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
