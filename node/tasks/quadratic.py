"""A problem whose answer is known: n different quadratic bowls, one a node, and the point that is best for all of them.

f_i(x) = ½ (x − b_i)ᵀ A_i (x − b_i). Nodes that only follow their own gradient end at b_i; a mixing algorithm is exact if all end
at x* = (Σ A_i)⁻¹ Σ A_i b_i.

Shapes: d = dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from starling.gossip.rng import generator as derived
from starling.node.tasks.api import Source
from starling.node.tasks.checks import choice, own_problem, real, whole

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, slots=True)
class Bowl:
    """½ (x − b)ᵀ A (x − b) + noiseᵀ x.

    Args:
        A: (d, d) symmetric, positive definite.
        b: (d,) its lowest point without noise.
        noise: (d,) error of the gradient, or None.
    """

    A: Tensor
    b: Tensor
    noise: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """(d,) -> scalar."""
        step = x - self.b
        value = 0.5 * torch.dot(step, self.A @ step)
        return value if self.noise is None else value + torch.dot(self.noise, x)


class Point(nn.Module):
    """A model that is nothing but its parameters; it starts at 0."""

    def __init__(self, dim: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(dim, dtype=dtype))

    def forward(self) -> Tensor:
        """-> (d,)."""
        return self.x


def gradient_noise(like: Tensor, sigma: float, generator: Generator) -> Tensor:
    """(d,) of N(0, sigma²), of the dtype and on the device of `like` (d,)."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).mul_(sigma).to(like.device)


@dataclass(frozen=True, slots=True)
class QuadraticData:
    """One node's bowl, and the sum of all for testing; satisfies `starling.node.tasks.api.Data`."""

    bowl: Bowl
    whole: Bowl
    sigma: float

    @property
    def samples(self) -> int:
        """One bowl."""
        return 1

    def batch(self, size: int, generator: Generator) -> Bowl:
        """The bowl, with fresh gradient noise N(0, sigma²) a coordinate; `size` does not matter."""
        if self.sigma == 0.0:
            return self.bowl
        return Bowl(self.bowl.A, self.bowl.b, gradient_noise(self.bowl.b, self.sigma, generator))

    def held_out(self, size: int) -> Iterator[Bowl]:
        """One batch: the mean of all nodes' bowls but for a constant, lowest at x*."""
        yield self.whole


@dataclass(frozen=True, slots=True)
class Quadratic:
    """How near to the common optimum? Node i has bowl i: set partition.shards to `nodes`.

    A_i = Q_i diag(logspace(−log₁₀ condition, 0)) Q_iᵀ with a random orthogonal Q_i, so the largest curvature is 1;
    b_i = common + spread · N(0, 1).

    Args:
        dim: d, 1 to 4,096.
        nodes: n, 1 to 4,096.
        condition: ratio of the largest to the smallest curvature, 1 to 1e12.
        spread: how much nodes' optima differ, 0 to 1e6.
        noise: standard deviation of the gradient's error in each coordinate, 0 to 1e6.
        dtype: "float32" or "float64".
    """

    dim: int = 50
    nodes: int = 16
    condition: float = 10.0
    spread: float = 1.0
    noise: float = 0.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        whole("dim", self.dim, 1, 4096)
        whole("nodes", self.nodes, 1, 4096)
        real("condition", self.condition, 1.0, 1e12)
        real("spread", self.spread, 0.0, 1e6)
        real("noise", self.noise, 0.0, 1e6)
        choice("dtype", self.dtype, DTYPES)

    @property
    def metric(self) -> str:
        """‖x − x*‖² / ‖x*‖² with the optimum x* of all `nodes` bowls."""
        return "error"

    @property
    def higher_is_better(self) -> bool:
        """No: 0 is exact, 1 is where everybody starts."""
        return False

    def model(self, generator: Generator) -> nn.Module:
        """The point 0, without chance."""
        return Point(self.dim, DTYPES[self.dtype])

    def data(self, source: Source, device: str) -> QuadraticData:
        """Bowl number `source.shard` of the problem that `source.seed` draws.

        Raises:
            ConfigError: a path is given, or there are not as many shards as bowls.
        """
        own_problem("quadratic", source, self.nodes)
        total, _ = self._sums(source.seed, range(self.nodes))
        return QuadraticData(
            bowl=self._placed(self.bowl(source.seed, source.shard), device),
            whole=self._placed(Bowl(total / self.nodes, self.optimum(range(self.nodes), source.seed)), device),
            sigma=float(self.noise),
        )

    def loss(self, model: nn.Module, batch: Bowl) -> Tensor:
        """f_i(x) with this batch's noise."""
        return batch(model())

    def score(self, model: nn.Module, batch: Bowl) -> tuple[float, float, int]:
        """(error, mean of all f_i above its least value, 1)."""
        x = model()
        return float((x - batch.b).square().sum() / batch.b.square().sum()), float(batch(x)), 1

    def optimum(self, alive: Iterable[int], seed: int) -> Tensor:
        """(d,) float64: the best point for the bowls of `alive` alone: where the rest should end after others left for good."""
        total, pull = self._sums(seed, alive)
        best: Tensor = torch.linalg.solve(total, pull)
        return best

    def bowl(self, seed: int, node: int) -> Bowl:
        """Of one node, without noise, float64."""
        chance = derived(seed, "quadratic", node)
        Q, _ = torch.linalg.qr(torch.randn(self.dim, self.dim, generator=chance, dtype=torch.float64))
        curvature = torch.logspace(-math.log10(self.condition), 0, self.dim, dtype=torch.float64)
        common = torch.randn(self.dim, generator=derived(seed, "quadratic", "common"), dtype=torch.float64)
        own = torch.randn(self.dim, generator=chance, dtype=torch.float64)
        A = (Q * curvature) @ Q.T
        return Bowl((A + A.T) / 2, common + self.spread * own)

    def _sums(self, seed: int, nodes: Iterable[int]) -> tuple[Tensor, Tensor]:
        """(Σ A_i, Σ A_i b_i), one bowl at a time."""
        total = torch.zeros(self.dim, self.dim, dtype=torch.float64)
        pull = torch.zeros(self.dim, dtype=torch.float64)
        for node in nodes:
            bowl = self.bowl(seed, node)
            total += bowl.A
            pull += bowl.A @ bowl.b
        return total, pull

    def _placed(self, bowl: Bowl, device: str) -> Bowl:
        dtype = DTYPES[self.dtype]
        return Bowl(bowl.A.to(device, dtype), bowl.b.to(device, dtype))
