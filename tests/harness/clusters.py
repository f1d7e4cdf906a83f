"""Linear regression with few samples per node, whose true weights lie around one of four centres, so personal models need others' help.

Shapes: d = 40 unknowns, m samples of a batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from starling.gossip.rng import generator as derived

DIM, CLUSTERS, SAMPLES = 40, 4, 24


@dataclass(frozen=True)
class Points:
    """One node's samples, and its true weights."""

    x: Tensor
    y: Tensor
    truth: Tensor
    device: str = "cpu"

    @property
    def samples(self) -> int:
        return len(self.y)

    @property
    def units(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.take(torch.randint(self.samples, (size,), generator=generator))

    def held_out(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        yield self.truth, self.truth


@dataclass(frozen=True)
class Clusters:
    """A task whose error is ‖w − w_i‖²/‖w_i‖², w_i the node's own true weights."""

    apart: float = 0.7
    metric = "error"
    higher_is_better = False

    def model(self, generator: torch.Generator) -> nn.Module:
        model = nn.Linear(DIM, 1, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def data(self, source, device: str) -> Points:
        common = derived(source.seed, "clusters")
        base = torch.randn(DIM, generator=common)
        centres = base + self.apart * torch.randn(CLUSTERS, DIM, generator=common)
        chance = derived(source.seed, "clusters", source.shard)
        truth = centres[source.shard % CLUSTERS] + 0.1 * torch.randn(DIM, generator=chance)
        x = torch.randn(SAMPLES, DIM, generator=chance)
        return Points(x, x @ truth + 0.5 * torch.randn(SAMPLES, generator=chance), truth)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return 0.5 * (model(x)[:, 0] - y).square().mean()

    def score(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[float, float, int]:
        truth, _ = batch
        error = float((model.weight[0] - truth).square().sum() / truth.square().sum())
        return error, error, 1
