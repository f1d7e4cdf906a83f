"""Gaussian classes with shared noise directions: too hard for one node's samples, quick enough for tables of attacks.

The task itself is fixed; a seed decides how it is split. Its draws are those of one numpy generator each, in a fixed order, so that
the same samples can be had without this package:

    rng = default_rng(1234): means M (10, 64) · .30, noise directions Q (64, 12) · .55, then training and test samples
    x = M[y] + N(0, 1)(12) Qᵀ · .5 + N(0, 1)(64) · .55, labels drawn first
    default_rng(100 + seed): each class's samples shuffled and cut by Dirichlet(alpha) over the nodes
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Generator, nn

from starling.gossip.errors import ConfigError
from starling.node.tasks import keys
from starling.node.tasks.api import DataError, Source
from starling.node.tasks.labelled import Classification, Examples, LabelledData, labelled, placed
from starling.node.tasks.networks import mlp
from starling.node.tasks.partition import take

FEATURES, CLASSES = 64, 10
TRAINING, TEST = 4000, 4000
_TASK_SEED, _SPLIT_SEED = 1234, 100
_FEW = 20  # a node with fewer samples gets as many more, drawn from all: some are then on several nodes


@dataclass(frozen=True, slots=True, init=False)
class Synthetic(Classification):
    """Ten classes. Softmax regression has d = 650; one node of 16 alone reaches an accuracy of .5, all together .96.

    Partition `dirichlet` is the split above; the others are those of all tasks.

    Its keys are those of `starling.node.tasks.keys.Synthetic`; `model` is stored as `network`, as it names a method of the protocol.
    """

    network: str
    hidden: int

    def __init__(self, model: Literal["softmax", "mlp"] = "softmax", hidden: int = 32) -> None:
        keys.Synthetic(model, hidden)
        object.__setattr__(self, "network", model)
        object.__setattr__(self, "hidden", hidden)

    def model(self, generator: Generator) -> nn.Module:
        """Zeros, or a fresh network with He initialisation."""
        if self.network == "mlp":
            return mlp(FEATURES, self.hidden, CLASSES, generator)
        layer = nn.Linear(FEATURES, CLASSES)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    def data(self, source: Source, device: str) -> LabelledData:
        """Return our part. Raises DataError if a path is given; ConfigError if the samples cannot be cut that way."""
        if source.path is not None:
            raise DataError(f"data: synthetic draws its own samples and reads no files, got {source.path}")
        train, test = drawn()
        if source.partition.kind != "dirichlet":
            return labelled(source, train, test, device)
        if source.partition.shards > TRAINING:
            raise ConfigError(f"partition.shards: cannot cut {TRAINING} samples into {source.partition.shards} shards, each needs one")
        parts = split(tuple(train.y.tolist()), source.partition.shards, source.partition.alpha, source.seed)
        return placed(train.take(take(parts, source.shard)), test, device)


@lru_cache(maxsize=1)
def drawn() -> tuple[Examples, Examples]:
    """Training and test samples: the same for every seed."""
    chance = np.random.default_rng(_TASK_SEED)
    means = chance.normal(size=(CLASSES, FEATURES)) * 0.30
    shared = chance.normal(size=(FEATURES, 12)) * 0.55

    def samples(count: int) -> Examples:
        y = chance.integers(0, CLASSES, size=count)
        x = means[y] + chance.normal(size=(count, 12)) @ shared.T * 0.5 + chance.normal(size=(count, FEATURES)) * 0.55
        return Examples(x.astype(np.float32), y.astype(np.int64))

    return samples(TRAINING), samples(TEST)


@lru_cache(maxsize=4)
def split(labels: tuple[int, ...], shards: int, alpha: float, seed: int) -> list[NDArray[np.int64]]:
    """Sample numbers of each shard, for alpha > 0: small is different, large is iid."""
    chance = np.random.default_rng(_SPLIT_SEED + seed)
    parts: list[list[int]] = [[] for _ in range(shards)]
    for label in range(CLASSES):
        own = np.flatnonzero(np.array(labels) == label)
        chance.shuffle(own)
        ends = (np.cumsum(chance.dirichlet(alpha * np.ones(shards))) * len(own)).astype(np.int64)[:-1]
        for part, piece in zip(parts, np.split(own, ends), strict=True):
            part.extend(piece.tolist())
    for part in parts:
        if len(part) < _FEW:
            part.extend(chance.choice(len(labels), _FEW, replace=False).tolist())
    return [np.array(part, np.int64) for part in parts]
