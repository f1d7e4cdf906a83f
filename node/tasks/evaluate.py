"""Evaluation in slices, so that a node continues training meanwhile, with normalisation statistics of its own data.

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

from starling.node.tasks.api import Counted, Data, Meter, Metered, Owned, Task
from starling.node.tasks.api import Result as Result  # noqa: PLC0414 — for those that evaluate
from starling.node.tasks.samples import rows

BATCHES = 32  # training batches that the statistics are a mean over


@dataclass(slots=True)
class SummedScores:
    """Measures a task without a meter of its own: sums its `score`."""

    task: Task
    value: float = 0.0
    loss: float = 0.0
    samples: int = 0

    def update(self, model: nn.Module, batch: Any, samples: int) -> None:
        """Add a batch, whose samples `score` counts itself."""
        value, loss, count = self.task.score(model, batch)
        self.value, self.loss, self.samples = self.value + value, self.loss + loss, self.samples + count

    def compute(self) -> Result:
        """Return the means over samples."""
        assert self.samples > 0, "a task's data hold out at least one sample"
        return Result(self.value / self.samples, self.loss / self.samples, self.samples)


def meter_of(task: Task) -> Meter:
    """Return the meter that evaluates a task's models."""
    return task.meter() if isinstance(task, Metered) else SummedScores(task)


def held_out(data: Data, size: int, *, own: bool = False) -> Iterator[tuple[Any, int]]:
    """Yield held-out batches with their numbers of samples; `own`: those that resemble this node's, if they are known."""
    if own and isinstance(data, Owned):
        return ((batch, rows(batch)) for batch in data.like_own(size))
    if isinstance(data, Counted):
        return data.counted(size)
    return ((batch, rows(batch)) for batch in data.held_out(size))


def evaluate(task: Task, model: nn.Module, data: Data, batch: int, *, own: bool = False) -> Iterator[Result | None]:
    """Measure `model` on held-out data: None after each batch, then the result. `own`: on those like this node's, if they are known.

    Gradient mode is switched off, and eval mode on, within a slice only, so the caller may train another model in between. This model must
    not change until the end: pass a copy of one in training.
    """
    meter = meter_of(task)
    for part, samples in held_out(data, batch, own=own):
        with evaluating(model), torch.no_grad():
            meter.update(model, part, samples)
        yield None
    with torch.no_grad():
        result = meter.compute()
    yield result


def tracking(model: nn.Module) -> list[Any]:
    """Return the layers with running statistics, in order: torch's, or others with the same attributes."""
    return [
        layer
        for layer in model.modules()
        if isinstance(getattr(layer, "running_mean", None), Tensor) and hasattr(layer, "reset_running_stats")
    ]


def estimated(model: nn.Module) -> list[Any]:
    """Return the normalisation layers that use batch statistics in training; frozen ones stay in evaluation mode."""
    layers = tracking(model)
    if not layers:
        return []
    with _modes(model):
        model.train()
        return [layer for layer in layers if layer.training]


def estimate(task: Task, model: nn.Module, batches: Iterable[Any]) -> Iterator[None]:
    """Replace the statistics of `model` by their mean over `batches`, a batch at a time; other buffers, parameters and mode stay.

    Every other layer runs in evaluation mode: no dropout. Batches are consumed only if there are layers with statistics to estimate. A
    batch that leaves statistics that are not finite, as one with a sample that is not, is left out; if all are, the statistics stay.
    """
    layers = estimated(model)
    if not layers:
        return
    before, taken = [each.clone() for each in _statistics(layers)], 0
    counts = [None if layer.num_batches_tracked is None else layer.num_batches_tracked.clone() for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
    for batch in batches:
        momentum, saved = [layer.momentum for layer in layers], [each.clone() for each in _statistics(layers)]
        for layer in layers:
            layer.momentum = 1.0 / (taken + 1)
        with _batch_statistics(model, layers), torch.no_grad():
            task.loss(model, batch)
        for layer, rate, count in zip(layers, momentum, counts, strict=True):
            layer.momentum = rate
            if count is not None:
                layer.num_batches_tracked.copy_(count)
        if all(bool(each.isfinite().all()) for each in _statistics(layers)):
            taken += 1
        else:
            _put_back(_statistics(layers), saved)
        yield
    if not taken:
        _put_back(_statistics(layers), before)


def _statistics(layers: list[Any]) -> list[Tensor]:
    both = [getattr(layer, name, None) for layer in layers for name in ("running_mean", "running_var")]
    return [each for each in both if isinstance(each, Tensor)]


def _put_back(buffers: Iterable[Tensor], before: Iterable[Tensor]) -> None:
    for buffer, each in zip(buffers, before, strict=True):
        buffer.copy_(each)


@contextmanager
def comparing(model: nn.Module) -> Iterator[None]:
    """Evaluation mode in which layers normalise by the batch and no statistic changes, for losses of other nodes' parameters."""
    layers = estimated(model)
    saved = [buffer.clone() for buffer in _buffers(layers)]
    with _batch_statistics(model, layers):
        yield
    _put_back(_buffers(layers), saved)


def _buffers(layers: list[Any]) -> Iterator[Tensor]:
    return (buffer for layer in layers for buffer in layer.buffers(recurse=False))


@contextmanager
def _batch_statistics(model: nn.Module, layers: list[Any]) -> Iterator[None]:
    with evaluating(model):
        for layer in layers:
            layer.training = True
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards each module is in the mode that it was in."""
    with _modes(model):
        model.eval()
        yield


@contextmanager
def _modes(model: nn.Module) -> Iterator[None]:
    """Restore each module's mode afterwards. This calls `train`, which a module may override, then sets each module's mode."""
    training, modes = model.training, [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        model.train(training)
        for module, mode in modes:
            module.training = mode


class TaskLoss(nn.Module):
    """A task's loss as a module, for `functional_call` to replace the parameters of its `model`."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._task = task

    def forward(self, batch: Any) -> Tensor:
        """Return the scalar loss of the batch."""
        return self._task.loss(self.model, batch)
