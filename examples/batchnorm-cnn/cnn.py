"""MNIST by a small convolutional network whose layers normalise by the batch: running statistics stay on each node."""

import gzip
import os
from pathlib import Path

import numpy as np
from torch import nn

import starling

TRAINED, TESTED = 10_000, 1000  # of each file: the first ones, so that it takes a minute


def read(name: str, header: int, most: int) -> np.ndarray:
    data = gzip.decompress((Path(os.environ["STARLING_DATA"]) / "mnist" / f"{name}-ubyte.gz").read_bytes())
    return np.frombuffer(data, np.uint8, offset=header)[:most]


def split(name: str, most: int) -> tuple[np.ndarray, np.ndarray]:
    images = read(f"{name}-images-idx3", 16, most * 784).reshape(-1, 1, 28, 28)
    return images, read(f"{name}-labels-idx1", 8, most).astype(np.int64)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 16, 10),
    )


def digits() -> starling.Task:
    return starling.task(model=net, train=split("train", TRAINED), test=split("t10k", TESTED))
