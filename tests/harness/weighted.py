"""Quadratics of nodes with declared numbers of samples."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from starling.node.tasks.convex import Bowl, Quadratic

SAMPLES = (100, 100, 300, 500)  # by shard
BOWLS = Quadratic(dim=6, nodes=4, dtype="float64")


@dataclass(frozen=True)
class Counted:
    """A node's data with another number of samples."""

    data: Any
    samples: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.data, name)


@dataclass(frozen=True)
class Weighted:
    """Quadratics in 6 dimensions, float64; `samples` of every node, 0: SAMPLES."""

    samples: int = 0
    metric: ClassVar[str] = BOWLS.metric
    higher_is_better: ClassVar[bool] = BOWLS.higher_is_better
    model: ClassVar[Any] = BOWLS.model
    loss: ClassVar[Any] = BOWLS.loss
    score: ClassVar[Any] = BOWLS.score

    def data(self, source: Any, device: str) -> Counted:
        return Counted(BOWLS.data(source, device), self.samples or SAMPLES[source.shard])


def minimum(seed: int, weights: Any) -> torch.Tensor:
    """Return (d,) the minimum of the weighted sum of the quadratics."""
    bowls: list[Bowl] = [BOWLS.bowl(seed, shard) for shard in range(4)]
    slope = sum(weight * bowl.A for weight, bowl in zip(weights, bowls, strict=True))
    pull = sum(weight * bowl.A @ bowl.b for weight, bowl in zip(weights, bowls, strict=True))
    return torch.linalg.solve(slope, pull)
