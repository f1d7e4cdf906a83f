"""Gaussian classes with a nuisance they share: hard enough that nobody can learn them alone, quick enough for tables of attacks.

The task itself is fixed; a seed decides how it is split. Its draws are those of one numpy generator each, in a fixed order, so that
the same samples can be had without this package:

    rng = default_rng(1234): means M (10, 64) · .30, nuisance Q (64, 12) · .55, then training and test samples
    x = M[y] + N(0, 1)(12) Qᵀ · .5 + N(0, 1)(64) · .55, labels drawn first
    default_rng(100 + seed): each class's samples shuffled and cut by Dirichlet(alpha) over the nodes
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from starling.gossip.errors import ConfigError
from starling.node.tasks.api import Source
from starling.node.tasks.checks import choice, whole
from starling.node.tasks.labelled import (
    Batch,
    Examples,
    LabelledData,
    classification_loss,
    classification_score,
    labelled,
    placed,
)
from starling.node.tasks.networks import mlp
from starling.node.tasks.partition import take

FEATURES, CLASSES = 64, 10
TRAINING, TEST = 4000, 4000
_TASK_SEED, _SPLIT_SEED = 1234, 100
_FEW = 20
"""Samples under which a node gets as many again, drawn from all: a few of them are on several nodes then."""


@dataclass(frozen=True, slots=True, init=False)
class Synthetic:
    """Which of ten clouds is it from? Softmax regression has d = 650; alone a node of 16 gets to half, all together to .96.

    Cut `dirichlet` it has a split of its own, see above; the other cuts are those of all tasks.

    Args:
        model: "softmax", which begins at 0, or "mlp" (one hidden layer). Kept as `network`: `model` is the protocol's method.
        hidden: mlp: units of the hidden layer, 1 to 65,536.
    """

    network: str
    hidden: int

    def __init__(self, model: str = "softmax", hidden: int = 32) -> None:
        choice("model", model, ("softmax", "mlp"))
        whole("hidden", hidden, 1, 1 << 16)
        object.__setattr__(self, "network", model)
        object.__setattr__(self, "hidden", hidden)

    @property
    def metric(self) -> str:
        """Share of test samples named right."""
        return "accuracy"

    @property
    def higher_is_better(self) -> bool:
        """It is."""
        return True

    def model(self, generator: Generator) -> nn.Module:
        """Zeros, or a fresh network with He initialisation."""
        if self.network == "mlp":
            return mlp(FEATURES, self.hidden, CLASSES, generator)
        layer = nn.Linear(FEATURES, CLASSES)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    def data(self, source: Source, device: str) -> LabelledData:
        """Our part.

        Raises:
            ConfigError: a path is given, or the samples cannot be cut that way.
        """
        if source.path is not None:
            raise ConfigError(f"data: synthetic draws its own samples and reads no files, got {source.path}")
        train, test = drawn()
        if source.partition.kind != "dirichlet":
            return labelled(source, train, test, device)
        if source.partition.shards > TRAINING:
            raise ConfigError(
                f"partition.shards: cannot cut {TRAINING} samples into {source.partition.shards} shards, each needs one"
            )
        parts = split(tuple(train.y.tolist()), source.partition.shards, source.partition.alpha, source.seed)
        return placed(train.take(take(parts, source.shard)), test, device)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy."""
        return classification_loss(model, batch)

    def score(self, model: nn.Module, batch: Batch) -> tuple[float, float, int]:
        """(right, summed cross-entropy, samples)."""
        return classification_score(model, batch)


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
    """Sample numbers of each shard.

    Args:
        labels: of the training samples.
        shards: s >= 1.
        alpha: > 0; small is different, large is iid.
        seed: of the split.
    """
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
