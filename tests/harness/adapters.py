"""A linear map of which only two low-rank factors are trained: every node's map is a common change of rank 4 plus its own change.

Shapes: 32 × 32 maps, rank r, m samples of a batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from starling.gossip.rng import generator as derived

SIZE, RANK, SAMPLES = 32, 4, 400


class Factors(nn.Module):
    """Computes x -> x (BA)ᵀ; B = 0 at first, so all start with the initial map, which is 0 here."""

    def __init__(self, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.lora_a = nn.Parameter(torch.randn(rank, SIZE, generator=generator) / SIZE**0.5)
        self.lora_b = nn.Parameter(torch.zeros(SIZE, rank))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x @ self.lora_a.T @ self.lora_b.T
        return made


@dataclass(frozen=True)
class Pairs:
    """One node's samples, and the common map."""

    x: Tensor
    y: Tensor
    common: Tensor
    device: str = "cpu"

    @property
    def samples(self) -> int:
        return len(self.x)

    @property
    def units(self) -> int:
        return len(self.x)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.take(torch.randint(self.samples, (size,), generator=generator))

    def held_out(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        yield self.common, self.common


@dataclass(frozen=True)
class Adapters:
    """A task whose error is ‖BA − D‖²/‖D‖², D the common change.

    Args:
        spread: size of the nodes' own changes, which sum to zero.
        nodes: number of nodes.
        rank: rank of the factors.
    """

    spread: float = 0.5
    nodes: int = 8
    rank: int = RANK
    metric = "error"
    higher_is_better = False

    def model(self, generator: torch.Generator) -> nn.Module:
        return Factors(self.rank, generator)

    def data(self, source, device: str) -> Pairs:
        common = _low_rank(derived(source.seed, "common"))
        own = [self.spread * _low_rank(derived(source.seed, "own", node)) for node in range(self.nodes)]
        mine = own[source.shard % self.nodes] - torch.stack(own).mean(0)
        chance = derived(source.seed, "samples", source.shard)
        x = torch.randn(SAMPLES, SIZE, generator=chance)
        y = x @ (common + mine).T + 0.1 * torch.randn(SAMPLES, SIZE, generator=chance)
        return Pairs(x.to(device), y.to(device), common.to(device))

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return half the squared error of a sample, summed over outputs, as the reference does."""
        x, y = batch
        return 0.5 * (model(x) - y).square().sum(-1).mean()

    def score(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[float, float, int]:
        common, _ = batch
        found = model.lora_b @ model.lora_a
        error = float((found - common).square().sum() / common.square().sum())
        return error, error, 1


def _low_rank(chance: torch.Generator) -> Tensor:
    return torch.randn(SIZE, RANK, generator=chance) @ torch.randn(RANK, SIZE, generator=chance) / SIZE**0.5
