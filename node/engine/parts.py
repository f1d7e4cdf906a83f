"""Weights for the parts of a batch, with which their losses and gradients add up to the whole batch's, whatever the loss averages over.

Losses are measured without a gradient, in evaluation mode and in the parameters' own precision.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from starling.gossip.errors import ConfigError
from starling.node.tasks.api import Task, Weighed
from starling.node.tasks.batches import cut, part, samples
from starling.node.tasks.evaluate import evaluating
from starling.node.tasks.means import Means, NoMean

TRIED = 16  # samples on which a loss is tried when a node opens
SIZES = (1, 2, 3, 5)  # sizes of the parts that are tried


class Parts:
    """Cuts batches of a task, whose loss `model` computes, into parts; limits are added to `notes`."""

    def __init__(self, task: Task, model: nn.Module, device: str, notes: list[str]) -> None:
        self._task, self._model, self._notes = task, model, notes
        self._said: set[str] = set()
        self._means = Means(task.weight if isinstance(task, Weighed) else None, _tolerance(model, device))

    def check(self, batch: Any, key: str) -> None:
        """Raise ConfigError, which names `key`: this batch cannot be cut, or its loss is no mean of those of parts of it.

        Small parts of few samples are tried, in several ways: of large ones all may have about equal weights by chance.
        """
        count = samples(batch)
        if count is None:
            raise ConfigError(
                f"{key}: the task's batches cannot be split: they must be tensors with one leading number of samples, or tuples, lists or "
                "dicts of such; leave it out"
            )
        if count == 1:
            return
        head = part(batch, 0, min(count, TRIED))
        try:
            for size in SIZES:
                self.shares(head, *cut(head, size))
        except NoMean as error:
            raise ConfigError(f"{key}: {error}, or leave it out") from error

    def shares(self, batch: Any, parts: Sequence[Any], sizes: Sequence[int]) -> list[float]:
        """Return the weights of the losses of parts of a batch, of so many samples, in the batch's loss. Raises NoMean: there are none."""
        if len(parts) == 1:
            return [1.0]
        try:
            return self._means.shares(batch, parts, sizes, self._loss)
        except NoMean:
            if self._loss(batch) == self._loss(batch):
                raise
            self._unsure("it is drawn at random")
        except Exception as error:  # noqa: BLE001 — a loss that has no value in evaluation mode, or too little memory for all parts at once
            if not out_of_memory(error):
                self._unsure(str(error))
            elif len(parts) > 2:
                self.shares(part(batch, 0, sum(sizes[:2])), parts[:2], sizes[:2])
            else:
                self._unsure("two parts of it do not fit into memory")
        return self._means.shares(batch, parts, sizes, None)

    def _unsure(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            self._notes.append(f"whether a batch's loss is the mean of its parts' losses, as it is computed, is not known: {why:.160}")

    def _loss(self, batch: Any) -> float:
        with evaluating(self._model), torch.no_grad():
            return float(self._task.loss(self._model, batch))


def _tolerance(model: nn.Module, device: str) -> float:
    """Return the relative error allowed for a loss that is computed in parts."""
    if any(each.dtype in {torch.bfloat16, torch.float16} for each in model.parameters()):
        return 2e-2
    return 1e-5 if device == "cpu" else 1e-3


def out_of_memory(error: BaseException) -> bool:
    """Tell if an error says that a device or the machine has no memory left; on the CPU torch raises a RuntimeError."""
    text = str(error)
    words = ("out of memory", "not enough memory", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(each in text for each in words)
