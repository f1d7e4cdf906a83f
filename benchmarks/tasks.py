"""Tasks of public data sets that Starling has no reader for, or would read again for every simulated node.

`task.kind = "benchmarks.tasks:Mnist"` and so on, with the data's place as `task.path`. Each has a network of one hidden layer.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, nn

from starling.gossip.errors import ConfigError
from starling.node.tasks.api import Source
from starling.node.tasks.files import read_idx, read_npz
from starling.node.tasks.labelled import Batch, Classification, Examples, LabelledData, labelled, placed
from starling.node.tasks.networks import he_init, mlp

TESTED = 2500
"""Held-out samples of a large data set that are looked at: the first ones, of all classes."""
TAKES = 5
"""First recordings of each digit by each speaker, which are held out as the data's authors do."""

Splits = tuple[Examples, Examples]


@dataclass(frozen=True, slots=True)
class _Files(Classification):
    """A classification task of the data that a reader finds at `path`.

    Args:
        path: the data, as benchmarks.data finds them.
        hidden: units of the hidden layer, >= 1.
    """

    path: str = ""
    hidden: int = 64
    features: ClassVar[int]
    classes: ClassVar[int] = 10
    read: ClassVar[Callable[[Path], Splits]]

    def model(self, generator: Generator) -> nn.Module:
        """Return a fresh network of one hidden layer."""
        return mlp(self.features, self.hidden, self.classes, generator)

    def data(self, source: Source, device: str) -> LabelledData:
        """Return our shard. Raises ConfigError if a path is given, or the files cannot be read or cut that way."""
        if source.path is not None:
            raise ConfigError(f"data: this task reads task.path alone, got {source.path}")
        return labelled(source, *type(self).read(Path(self.path)), device)


@lru_cache(maxsize=1)
def mnist(folder: Path) -> Splits:
    """Return the 60,000 training images, (n, 784) uint8, and the first TESTED of the others."""
    train, test = (
        Examples(
            read_idx(folder / f"{split}-images-idx3-ubyte.gz", 3)[:most].reshape(-1, 784),
            read_idx(folder / f"{split}-labels-idx1-ubyte.gz", 1)[:most].astype(np.int64),
        )
        for split, most in (("train", None), ("t10k", TESTED))
    )
    return train, test


@lru_cache(maxsize=1)
def speech(path: Path) -> Splits:
    """Return spoken digits as (n, 384) features of mean 0 and variance 1, 24 times by 16 bands; a sample's owner is its speaker."""
    arrays = read_npz(path, ("logmel", "digit", "speaker", "take"))
    sound = arrays["logmel"].astype(np.float32)
    x = sound.reshape(len(sound), sound.shape[1] // 2, 2, sound.shape[2] // 2, 2).mean(axis=(2, 4)).reshape(len(sound), -1)
    test = arrays["take"] < TAKES
    x = (x - x[~test].mean(axis=0)) / (x[~test].std(axis=0) + 1e-6)
    whole = Examples(x, arrays["digit"].astype(np.int64), arrays["speaker"])
    return whole.take(np.flatnonzero(~test)), whole.take(np.flatnonzero(test))


@lru_cache(maxsize=1)
def speakers(path: Path, left_out: int, *, only: bool = False) -> Splits:
    """Return spoken digits as (n, 48 · 32) log-mel bands over time, without the speaker who is left out; `only`: only that speaker."""
    arrays = read_npz(path, ("logmel", "digit", "speaker"))
    sound, test = arrays["logmel"].astype(np.float32), (arrays["speaker"] == left_out) ^ only
    x = ((sound - sound[~test].mean()) / sound[~test].std()).reshape(len(sound), -1)
    whole = Examples(x, arrays["digit"].astype(np.int64), arrays["speaker"])
    return whole.take(np.flatnonzero(~test)), whole.take(np.flatnonzero(test))


@lru_cache(maxsize=1)
def adult(folder: Path) -> Splits:
    """Return UCI Adult, (n, 123) of 0 and 1; 1: more than 50,000 a year. All training rows and the first TESTED of the test file."""
    return libsvm(folder / "a9a.gz", 123), libsvm(folder / "a9a.t.gz", 123).take(np.arange(TESTED))


def libsvm(path: Path, features: int) -> Examples:
    """Parse rows of `label number:value …`, numbers from 1 to `features`; a positive label is class 1.

    Raises:
        ConfigError: the file is none, or has no features.
    """
    try:
        rows = [line.split() for line in gzip.decompress(path.read_bytes()).decode("ascii").splitlines()]
        y = np.array([float(label) > 0 for label, *_ in rows], np.int64)
        entries = [(row, *entry.partition(":")[::2]) for row, (_, *own) in enumerate(rows) for entry in own]
        at = np.array([(row, int(number) - 1) for row, number, _ in entries])
        values = np.array([float(value) for _, _, value in entries], np.float32)
    except (OSError, EOFError, ValueError) as error:
        raise ConfigError(f"{path}: not a readable LIBSVM file: {error}") from error
    if not at.size or at.min() < 0 or at[:, 1].max() >= features:
        raise ConfigError(f"{path}: not a readable LIBSVM file: features must be in [1, {features}]")
    x: NDArray[np.float32] = np.zeros((len(rows), features), np.float32)
    x[at[:, 0], at[:, 1]] = values
    return Examples(x, y)


class Mnist(_Files):
    """Classify written digits."""

    __slots__ = ()
    features: ClassVar[int] = 784
    read = staticmethod(mnist)


class Speech(_Files):
    """Classify spoken digits."""

    __slots__ = ()
    features: ClassVar[int] = 384
    read = staticmethod(speech)


FRAMES, BANDS = 48, 32  # frames and bands of a spoken digit
LATER, HIGHER = 6, 2  # largest shift in frames and bands of a training sample


@dataclass(frozen=True, slots=True)
class Moved:
    """Spoken digits of a shard, each shifted randomly in time and frequency; values shifted out at one end return at the other."""

    data: LabelledData

    @property
    def samples(self) -> int:
        """Return the number of this node's training samples."""
        return self.data.samples

    def batch(self, size: int, generator: Generator) -> Batch:
        """Return a batch of `LabelledData`, moved at random."""
        x, y = self.data.batch(size, generator)
        later, higher = (torch.randint(-most, most + 1, (size, 1), generator=generator) for most in (LATER, HIGHER))
        rows, columns = (torch.arange(FRAMES) - later) % FRAMES, (torch.arange(BANDS) - higher) % BANDS
        moved = x.view(size, FRAMES, BANDS)[torch.arange(size)[:, None, None], rows[:, :, None], columns[:, None, :]]
        return moved.reshape(size, -1), y

    def held_out(self, size: int) -> Iterator[Batch]:
        """Return the test split in order."""
        return self.data.held_out(size)


@dataclass(frozen=True, slots=True)
class Speakers(_Files):
    """Classify digits spoken by a speaker who is not in the training data. Two convolutions, and one hidden layer.

    Args:
        left_out: the speaker, in [0, 6).
        only: each node learns from all of that speaker, and is tested on all others.
    """

    left_out: int = 0
    only: bool = False
    features: ClassVar[int] = FRAMES * BANDS

    def model(self, generator: Generator) -> nn.Module:
        layers = nn.Sequential(
            nn.Unflatten(1, (1, FRAMES, BANDS)),
            nn.Conv2d(1, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d((3, 4)),
            nn.Flatten(),
            nn.Linear(32 * 12, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.classes),
        )
        return he_init(layers, generator)

    def data(self, source: Source, device: str) -> Moved:
        if source.path is not None:
            raise ConfigError(f"data: this task reads task.path alone, got {source.path}")
        train, test = speakers(Path(self.path), self.left_out, only=self.only)
        return Moved(placed(train, test, device) if self.only else labelled(source, train, test, device))


class Adult(_Files):
    """Predict if an income is above 50,000 a year."""

    __slots__ = ()
    features: ClassVar[int] = 123
    classes: ClassVar[int] = 2
    read = staticmethod(adult)
