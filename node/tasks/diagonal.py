"""The problem with a known answer for large d: bowls whose axes are the coordinates, so that a gradient costs d.

f_i(x) = ½ Σ_k a_ik (x_k − b_ik)². Nodes differ in where their bowl is lowest and in which coordinates are steep; the best point for
all is x*_k = Σ a_ik b_ik / Σ a_ik.

Shapes: d = dim, m nodes.
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
from starling.node.tasks.quadratic import DTYPES, Point, gradient_noise


@dataclass(frozen=True, slots=True)
class AxisBowl:
    """½ Σ a (x − b)² + noiseᵀ x.

    Args:
        a: (d,) curvatures, > 0.
        b: (d,) its lowest point without noise.
        noise: (d,) error of the gradient, or None.
    """

    a: Tensor
    b: Tensor
    noise: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """(d,) -> scalar."""
        step = x - self.b
        value = 0.5 * torch.dot(self.a * step, step)
        return value if self.noise is None else value + torch.dot(self.noise, x)


@dataclass(frozen=True, slots=True)
class DiagonalData:
    """One node's bowl, and the mean of all for testing; satisfies `starling.node.tasks.api.Data`."""

    bowl: AxisBowl
    whole: AxisBowl
    sigma: float

    @property
    def samples(self) -> int:
        """One bowl."""
        return 1

    def batch(self, size: int, generator: Generator) -> AxisBowl:
        """The bowl, with fresh gradient noise N(0, sigma²) a coordinate; `size` does not matter."""
        if self.sigma == 0.0:
            return self.bowl
        return AxisBowl(self.bowl.a, self.bowl.b, gradient_noise(self.bowl.b, self.sigma, generator))

    def held_out(self, size: int) -> Iterator[AxisBowl]:
        """One batch: the mean of all nodes' bowls but for a constant, lowest at x*."""
        yield self.whole


@dataclass(frozen=True, slots=True)
class Diagonal:
    """How near to the common optimum, in many dimensions? Node i has bowl i: set partition.shards to `nodes`.

    a_i is a random order of logspace(−log₁₀ condition, 0), so the largest curvature is 1; b_i = common + spread · N(0, 1).

    Args:
        dim: d, 1 to 16,777,216.
        nodes: n, 1 to 100,000.
        condition: ratio of the largest to the smallest curvature, 1 to 1e12.
        spread: how much nodes' optima differ, 0 to 1e6.
        noise: standard deviation of the gradient's error in each coordinate, 0 to 1e6.
        dtype: "float32" or "float64".
    """

    dim: int = 1000
    nodes: int = 16
    condition: float = 10.0
    spread: float = 1.0
    noise: float = 0.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        whole("dim", self.dim, 1, 1 << 24)
        whole("nodes", self.nodes, 1, 100_000)
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

    def data(self, source: Source, device: str) -> DiagonalData:
        """Bowl number `source.shard` of the problem that `source.seed` draws.

        Raises:
            ConfigError: a path is given, or there are not as many shards as bowls.
        """
        own_problem("diagonal", source, self.nodes)
        dtype = DTYPES[self.dtype]
        a, b = self.bowl(source.seed, source.shard)
        total, pull = self._sums(source.seed, range(self.nodes))
        return DiagonalData(
            bowl=AxisBowl(a.to(device, dtype), b.to(device, dtype)),
            whole=AxisBowl((total / self.nodes).to(device, dtype), (pull / total).to(device, dtype)),
            sigma=float(self.noise),
        )

    def loss(self, model: nn.Module, batch: AxisBowl) -> Tensor:
        """f_i(x) with this batch's noise."""
        return batch(model())

    def score(self, model: nn.Module, batch: AxisBowl) -> tuple[float, float, int]:
        """(error, mean of all f_i above its least value, 1)."""
        x = model()
        return float((x - batch.b).square().sum() / batch.b.square().sum()), float(batch(x)), 1

    def optimum(self, alive: Iterable[int], seed: int) -> Tensor:
        """(d,) float64: the best point for the bowls of `alive` alone."""
        total, pull = self._sums(seed, alive)
        return pull / total

    def bowl(self, seed: int, node: int) -> tuple[Tensor, Tensor]:
        """A (d,) and b (d,) of one node, float64."""
        chance = derived(seed, "diagonal", node)
        common = torch.randn(self.dim, generator=derived(seed, "diagonal", "common"), dtype=torch.float64)
        curvature = torch.logspace(-math.log10(self.condition), 0, self.dim, dtype=torch.float64)
        a = curvature[torch.randperm(self.dim, generator=chance)]
        return a, common + self.spread * torch.randn(self.dim, generator=chance, dtype=torch.float64)

    def _sums(self, seed: int, nodes: Iterable[int]) -> tuple[Tensor, Tensor]:
        """(Σ a_i, Σ a_i b_i), one bowl at a time."""
        total, pull = torch.zeros(2, self.dim, dtype=torch.float64)
        for node in nodes:
            a, b = self.bowl(seed, node)
            total += a
            pull += a * b
        return total, pull
