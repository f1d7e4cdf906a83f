"""Evaluation in slices, so that a node goes on training while it measures itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from starling.node.tasks.api import Data, Task


@dataclass(frozen=True, slots=True)
class Progress:
    """One slice is done.

    Args:
        samples: held-out samples measured so far.
    """

    samples: int


@dataclass(frozen=True, slots=True)
class Result:
    """All slices are done.

    Args:
        value: the task's metric, mean over samples.
        loss: mean loss over samples.
        samples: held-out samples.
    """

    value: float
    loss: float
    samples: int


def evaluate(task: Task, model: nn.Module, data: Data, batch: int) -> Iterator[Progress | Result]:
    """Measure `model` on held-out data: one `Progress` a batch, then one `Result`.

    Between slices the caller may do what it likes, train another model in the same process for one: gradient mode is switched
    off within a slice only. The model itself must stay as it is until the end, so pass a copy of one in training.

    Args:
        task: knows the metric.
        model: evaluated in eval mode and left in the mode it came in.
        data: its held-out samples.
        batch: samples of a slice, >= 1.
    """
    value, loss, samples = 0.0, 0.0, 0
    for held_out in data.held_out(batch):
        training = model.training
        model.eval()
        with torch.no_grad():
            part = task.score(model, held_out)
        model.train(training)
        value, loss, samples = value + part[0], loss + part[1], samples + part[2]
        yield Progress(samples)
    assert samples > 0, "a task's data hold out at least one sample"
    yield Result(value / samples, loss / samples, samples)
