"""Labelled samples, and what the classification tasks share.

Shapes: n samples, m samples of a batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from starling.gossip.seeds import derive
from starling.node.tasks.api import DataError, Source
from starling.node.tasks.partition import cut, take

Batch = tuple[Tensor, Tensor]  # (m, …) float32 samples and (m,) int64 labels

HELD_OUT = 0.1  # share of the samples used for testing if there is no test split


@dataclass(frozen=True, slots=True)
class Examples:
    """Samples as they were read, one split of them."""

    x: NDArray[Any]  # (n, …) uint8, taken as shares of 255, or float32
    y: NDArray[np.int64]  # (n,) int64 labels
    keys: NDArray[Any] | None = None  # (n,) owner of each sample, for a cut by_key; None: unknown

    def take(self, indices: NDArray[np.int64]) -> "Examples":
        """Return a copy of the samples at `indices`."""
        return Examples(self.x[indices], self.y[indices], None if self.keys is None else self.keys[indices])


@dataclass(frozen=True, slots=True)
class LabelledData:
    """One node's share on the device; satisfies `starling.node.tasks.api.Data` and `Sampled`. Bytes stay bytes until a batch is made."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    @property
    def samples(self) -> int:
        """Return the number of this node's training samples."""
        return self.y.numel()

    def batch(self, size: int, generator: Generator) -> Batch:
        """`size` samples drawn with replacement: the cheapest fair draw, and a shard may be smaller than a batch."""
        return self.take(torch.randint(self.samples, (size,), generator=generator))

    @property
    def units(self) -> int:
        return self.samples

    def take(self, index: Tensor) -> Batch:
        index = index.to(self.x.device)
        x = self.x[index]
        return x if x.dtype == torch.float32 else _floats(x), self.y[index]

    def held_out(self, size: int) -> Iterator[Batch]:
        """Yield the test split in order."""
        for x, y in zip(torch.split(self.test_x, size), torch.split(self.test_y, size), strict=True):
            yield _floats(x), y

    def like_own(self, size: int) -> Iterator[Batch]:
        """Yield the first test samples of each label in numbers that give the labels this node's shares; all of them if none fits."""
        labels, counts = torch.unique(self.y, return_counts=True)
        there = torch.stack([(self.test_y == label).sum() for label in labels])
        most = (there / counts).min()  # test samples per training sample of the scarcest label
        places = [
            (self.test_y == label).nonzero().view(-1)[: max(1, int(most * count))] for label, count in zip(labels, counts, strict=True)
        ]
        index = torch.cat(places).sort().values if float(most) else torch.arange(len(self.test_y), device=self.y.device)
        for part in torch.split(index, size):
            yield _floats(self.test_x[part]), self.test_y[part]


@dataclass(frozen=True, slots=True)
class Poisoned:
    """Labelled samples that an attacker poisons by (x, y, classes) -> batch; held-out samples are not changed."""

    data: LabelledData
    classes: int
    change: Callable[[Tensor, Tensor, int], Batch]

    @property
    def samples(self) -> int:
        """Return the number of this node's training samples."""
        return self.data.samples

    def batch(self, size: int, generator: Generator) -> Batch:
        """Return the honest draw, changed."""
        return self.change(*self.data.batch(size, generator), self.classes)

    def held_out(self, size: int) -> Iterator[Batch]:
        """Return the test split in order."""
        return self.data.held_out(size)


class Classification:
    """Metric, loss and score of the built-in classification tasks."""

    __slots__ = ()
    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy, in nats."""
        x, y = batch
        return cross_entropy(model(x), y)

    def score(self, model: nn.Module, batch: Batch) -> tuple[float, float, int]:
        """Return (correct predictions, summed cross-entropy, samples)."""
        x, y = batch
        return self.score_of(model(x), y)

    def parted(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return batch

    def loss_of(self, output: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of logits (m, classes)."""
        return cross_entropy(output, labels)

    def score_of(self, output: Tensor, labels: Tensor) -> tuple[float, float, int]:
        """Return correct predictions, summed cross-entropy and number of labels, for logits (m, classes)."""
        right = (output.argmax(dim=1) == labels).sum()
        return float(right), float(cross_entropy(output, labels, reduction="sum")), labels.numel()


def labelled(source: Source, train: Examples, test: Examples | None, device: str) -> LabelledData:
    """Return one node's data: all of a volunteer's own, else its shard of the built-in ones, as tensors on a device.

    Without a test split one sample in ten is held out, equal on all nodes with the same data. Raises DataError: there are too few
    samples; ConfigError: these data cannot be partitioned that way.
    """
    if test is None:
        train_rows, test_rows = held_out_rows(len(train.y))
        train, test = train.take(train_rows), train.take(test_rows)
    if source.path is None:
        parts = cut(source.partition, len(train.y), source.seed, labels=train.y, keys=train.keys)
        train = train.take(take(parts, source.shard))
    return placed(train, test, device)


def placed(train: Examples, test: Examples, device: str) -> LabelledData:
    """Return one node's samples on a device."""
    x, y, test_x, test_y = (torch.tensor(each, device=device) for each in (train.x, train.y, test.x, test.y))
    return LabelledData(x, y, test_x, test_y)


def check_labels(where: str, y: NDArray[Any], samples: int, classes: int) -> NDArray[np.int64]:
    """Labels as int64. Raises DataError if they are not `samples` whole numbers in [0, classes)."""
    if y.shape != (samples,) or y.dtype.kind not in "ui":
        raise DataError(f"{where}: labels must be {samples} whole numbers, got {y.dtype} of shape {y.shape}")
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise DataError(f"{where}: labels must be in [0, {classes}), got {y.min()} to {y.max()}")
    return y.astype(np.int64)


def held_out_rows(samples: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on, and one in ten to test on, equal on all nodes. Raises DataError: there are fewer than two."""
    if samples < 2:
        raise DataError(f"data: {samples} sample is too few, one is needed to train and one to test")
    order = np.random.Generator(np.random.PCG64(derive(0, "held_out"))).permutation(samples)
    tested = max(1, int(samples * HELD_OUT))
    return np.sort(order[tested:]), np.sort(order[:tested])


def _floats(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float32 else x.to(torch.float32).mul_(1 / 255)
