"""`starling.task(...)`: a classification task from a model, a loss and arrays. Other tasks are classes (`node.tasks.api.Task`)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from starling.gossip.errors import ConfigError
from starling.node.tasks.api import Source
from starling.node.tasks.labelled import Batch, Classification, Examples, LabelledData, labelled


@dataclass(frozen=True, slots=True, eq=False)
class Classifier(Classification):
    """Satisfies `starling.node.tasks.api.Task`; see `task` for the fields."""

    make: Callable[[], nn.Module]
    train: Examples
    test: Examples | None
    criterion: Callable[[Tensor, Tensor], Tensor]

    def model(self, generator: Generator) -> nn.Module:
        """A fresh model; torch's global generator is seeded from `generator` for it, and restored."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            return self.make()

    def data(self, source: Source, device: str) -> LabelledData:
        """A shard of the training samples. Raises ConfigError if a path is given: the data are in the task."""
        if source.path is not None:
            raise ConfigError(f"data: this task brings its own data and reads no files, got {source.path}")
        return labelled(source, self.train, self.test, device)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Scalar training loss."""
        x, y = batch
        return self.criterion(model(x), y)

    def score(self, model: nn.Module, batch: Batch) -> tuple[float, float, int]:
        """(correct predictions, sum of the loss, samples)."""
        x, y = batch
        output = model(x)
        correct = float((output.argmax(-1) == y).sum())
        return correct, float(self.criterion(output, y)) * len(y), len(y)


def task(
    *, model: Callable[[], nn.Module], train: tuple[Any, Any], test: tuple[Any, Any] | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy,
) -> Classifier:  # fmt: skip
    """A classification task from its parts. Return it from a function of a module, and name that: `task.kind = "my_task:digits"`.

    Args:
        model: makes a fresh model; called with torch's global generator seeded, so that all nodes begin alike.
        train: (x, y): (n, …) float or uint8 inputs (bytes are divided by 255), (n,) integer labels; arrays or tensors. Cut into shards.
        test: the same for evaluation; None holds out one sample in ten.
        loss: (model output, labels) -> scalar mean over the batch.

    Raises:
        ConfigError: inputs and labels do not fit, or labels are no integers.
    """
    return Classifier(model, _examples("train", train), None if test is None else _examples("test", test), loss)


def _examples(name: str, pair: tuple[Any, Any]) -> Examples:
    x, y = (np.asarray(each) for each in pair)
    if y.ndim != 1 or len(x) != len(y) or y.dtype.kind not in "iu":
        raise ConfigError(
            f"{name}: needs (n, …) inputs and (n,) integer labels, got {x.shape} and {y.dtype} {y.shape}; for other data write a class, "
            "see docs/extending.md"
        )
    return Examples(x if x.dtype == np.uint8 else x.astype(np.float32), y.astype(np.int64))
