"""Real handwritten digits, small enough to learn in seconds: 1,797 images of 8 × 8 pixels, in data/digits.csv.gz.

Source: Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository (CC BY 4.0).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, nn

from starling.node.tasks import keys
from starling.node.tasks.api import DataError, Source
from starling.node.tasks.files import read_npz
from starling.node.tasks.labelled import Classification, Examples, LabelledData, check_labels, labelled
from starling.node.tasks.networks import classifier

SIDE = 8
PIXELS = SIDE * SIDE
CLASSES = 10
BRIGHTEST = 16
DATA = Path(__file__).parent / "data" / "digits.csv.gz"  # rows of 64 pixels, 0 to 16, and a label, 0 to 9
TRAINING = 1437  # built-in training samples; the other 360 are the test split


@dataclass(frozen=True, slots=True, init=False)
class Digits(Classification):
    """Classify images of handwritten digits. With the 64-unit MLP d = 4,810.

    A volunteer's own data are an .npz file with x: (n, 64) or (n, 8, 8), 0 to 16, and y: (n,), 0 to 9.

    Its keys are those of `starling.node.tasks.keys.Digits`; `model` is stored as `network`, as it names a method of the protocol.
    """

    network: str
    hidden: int

    def __init__(self, model: keys.Network = "mlp", hidden: int = 64) -> None:
        keys.Digits(model, hidden)
        object.__setattr__(self, "network", model)
        object.__setattr__(self, "hidden", hidden)

    def model(self, generator: Generator) -> nn.Module:
        """Return a fresh classifier with He initialisation."""
        return classifier(self.network, (1, SIDE, SIDE), self.hidden, CLASSES, generator)

    def blocks(self, generator: Generator) -> Iterator[nn.Module]:
        """Layers, which are small enough to be made at once."""
        return self.model(generator).children()

    def data(self, source: Source, device: str) -> LabelledData:
        """Return our shard of the built-in digits, or all of the volunteer's own. Raises DataError if their file does not fit."""
        if source.path is not None:
            return labelled(source, self._shaped(_own(source.path)), None, device)
        train, test = built_in()
        return labelled(source, self._shaped(train), self._shaped(test), device)

    def _shaped(self, examples: Examples) -> Examples:
        shape = (-1, 1, SIDE, SIDE) if self.network == "cnn" else (-1, PIXELS)
        return Examples(examples.x.reshape(shape), examples.y)


@cache
def built_in() -> tuple[Examples, Examples]:
    """Training split (1,437) and test split (360) of the digits, in one fixed shuffled order, read once and not writable."""
    rows = np.loadtxt(DATA, dtype=np.int64, delimiter=",")
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).numpy()]
    examples = Examples(_normalised(rows[:, :PIXELS]), rows[:, PIXELS])
    order = np.arange(len(rows))
    train, test = examples.take(order[:TRAINING]), examples.take(order[TRAINING:])
    for each in (train.x, train.y, test.x, test.y):
        each.setflags(write=False)
    return train, test


def _own(path: Path) -> Examples:
    arrays = read_npz(path, ("x", "y"))
    x = arrays["x"]
    if x.shape[1:] not in ((PIXELS,), (SIDE, SIDE)) or x.dtype.kind not in "uif":
        raise DataError(f"{path}: x must be numbers of shape (n, 64) or (n, 8, 8), got {x.dtype} of shape {x.shape}")
    if not ((x >= 0) & (x <= BRIGHTEST)).all():
        raise DataError(f"{path}: x must be in [0, {BRIGHTEST}]")
    return Examples(_normalised(x), check_labels(f"{path}: y", arrays["y"], len(x), CLASSES))


def _normalised(x: NDArray[Any]) -> NDArray[np.float32]:
    return (x / BRIGHTEST).astype(np.float32)
