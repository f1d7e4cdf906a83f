"""Convex problems whose optimum x* is known, with one node's own share each; nodes that follow only their own gradient end elsewhere.

    quadratic   f_i(x) = ½ (x − b_i)ᵀ A_i (x − b_i), so x* = (Σ A_i)⁻¹ Σ A_i b_i
    diagonal    the same with diagonal A_i, for large d: a gradient costs d, and x*_k = Σ a_ik b_ik / Σ a_ik
    logistic    f_i(w) = mean log(1 + exp(−y zᵀw)) + ½ mu ‖w‖² over the samples (z, y) of node i; x* by Newton's method

Set partition.shards to `nodes`: node i has share i. The metric is ‖x − x*‖² / ‖x*‖²: 1 at the start x = 0, 0 at x*.

Shapes: d = dim, s samples of a node, m of a batch.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import softplus

from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator as derived
from starling.node.tasks import keys
from starling.node.tasks.api import DataError, Source

DTYPES = {"float32": torch.float32, "float64": torch.float64}
Samples = tuple[Tensor, Tensor]  # (m, d) features and (m,) labels, −1 or 1
_NEWTON_STEPS = 60


class Point(nn.Module):
    """A model that is nothing but its parameters; it starts at 0."""

    def __init__(self, dim: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(dim, dtype=dtype))

    def forward(self) -> Tensor:
        """Return the point x (d,)."""
        return self.x


class Convex:
    """Code shared by the convex problems."""

    __slots__ = ()
    metric: ClassVar[str] = "error"
    higher_is_better: ClassVar[bool] = False
    dim: int
    nodes: int
    dtype: str

    def model(self, generator: Generator) -> nn.Module:
        """Return the point 0; draws nothing."""
        return Point(self.dim, DTYPES[self.dtype])

    def check(self, source: Source) -> None:
        """Raises ConfigError unless the source is one of `nodes` shards; DataError: it is a file."""
        if source.path is not None:
            kind = type(self).__name__.lower()
            raise DataError(f"data: {kind} draws its own problem and reads no files, got {source.path}")
        if source.partition.shards != self.nodes:
            raise ConfigError(f"partition.shards: must be task.nodes = {self.nodes}, got {source.partition.shards}")
        if not 0 <= source.shard < self.nodes:
            raise ConfigError(f"shard: must be in [0, {self.nodes}), task.nodes, got {source.shard}")


@dataclass(frozen=True, slots=True)
class Bowl:
    """The quadratic ½ (x − b)ᵀ A (x − b) + noiseᵀ x."""

    A: Tensor  # (d, d) symmetric and positive definite, or (d,) > 0 where it is diagonal
    b: Tensor  # (d,) its lowest point without noise
    noise: Tensor | None = None  # (d,) error of the gradient, or None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the value at x (d,), a scalar."""
        step = x - self.b
        value = 0.5 * torch.dot(step, self.times(step))
        return value if self.noise is None else value + torch.dot(self.noise, x)

    def times(self, x: Tensor) -> Tensor:
        """Return A x, (d,)."""
        return self.A * x if self.A.dim() == 1 else self.A @ x

    def to(self, device: str, dtype: torch.dtype) -> "Bowl":
        """Return a copy without noise."""
        return Bowl(self.A.to(device, dtype), self.b.to(device, dtype))


def gradient_noise(like: Tensor, sigma: float, generator: Generator) -> Tensor:
    """Return (d,) of N(0, sigma²), of the dtype and on the device of `like` (d,)."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).mul_(sigma).to(like.device)


@dataclass(frozen=True, slots=True)
class BowlData:
    """One node's quadratic; for testing the mean of all nodes' quadratics, up to a constant. Satisfies `starling.node.tasks.api.Data`."""

    bowl: Bowl
    whole: Bowl
    sigma: float
    samples: ClassVar[int] = 1

    def batch(self, size: int, generator: Generator) -> Bowl:
        """Return the bowl, with fresh gradient noise N(0, sigma²) in each coordinate; `size` is ignored."""
        if self.sigma == 0.0:
            return self.bowl
        return replace(self.bowl, noise=gradient_noise(self.bowl.b, self.sigma, generator))

    def held_out(self, size: int) -> Iterator[Bowl]:
        """Yield one batch: the whole function."""
        yield self.whole


@dataclass(frozen=True, slots=True)
class Quadratic(keys.Quadratic, Convex):
    """Bowls with random axes: A_i = Q_i diag(logspace(−log₁₀ condition, 0)) Q_iᵀ, Q_i orthogonal; b_i = common + spread · N(0, 1)."""

    def data(self, source: Source, device: str) -> BowlData:
        """Bowl number `source.shard` of the problem that `source.seed` draws. Raises ConfigError as `check`."""
        self.check(source)
        own, mean = (self.bowl(source.seed, source.shard), self._mean(source.seed, range(self.nodes)))
        dtype = DTYPES[self.dtype]
        return BowlData(own.to(device, dtype), mean.to(device, dtype), float(self.noise))

    def loss(self, model: nn.Module, batch: Bowl) -> Tensor:
        """Return f_i(x) with this batch's noise."""
        return batch(model())

    def score(self, model: nn.Module, batch: Bowl) -> tuple[float, float, int]:
        """Return (error, mean of all f_i above its least value, 1)."""
        x = model()
        return _error(x, batch.b), float(batch(x)), 1

    def optimum(self, alive: Iterable[int], seed: int) -> Tensor:
        """Return (d,) float64: the optimum of the nodes `alive` alone."""
        return self._mean(seed, alive).b

    def bowl(self, seed: int, node: int) -> Bowl:
        """Return the function of one node, float64, without noise."""
        kind = type(self).__name__.lower()
        chance, float64 = derived(seed, kind, node), torch.float64
        A = self._axes(torch.logspace(-math.log10(self.condition), 0, self.dim, dtype=float64), chance)
        common = torch.randn(self.dim, generator=derived(seed, kind, "common"), dtype=float64)
        return Bowl(A, common + self.spread * torch.randn(self.dim, generator=chance, dtype=float64))

    def _axes(self, curvature: Tensor, chance: Generator) -> Tensor:
        Q, _ = torch.linalg.qr(torch.randn(self.dim, self.dim, generator=chance, dtype=torch.float64))
        A: Tensor = (Q * curvature) @ Q.T
        return (A + A.T) / 2

    def _mean(self, seed: int, nodes: Iterable[int]) -> Bowl:
        """Return the mean of the nodes' functions but for a constant; they are drawn one at a time."""
        total, pull, count = torch.zeros(()), torch.zeros(()), 0
        for count, node in enumerate(nodes, 1):  # noqa: B007
            bowl = self.bowl(seed, node)
            total, pull = total + bowl.A, pull + bowl.times(bowl.b)
        best: Tensor = pull / total if total.dim() == 1 else torch.linalg.solve(total, pull)
        return Bowl(total / count, best)


@dataclass(frozen=True, slots=True)
class Diagonal(keys.Diagonal, Quadratic):
    """Bowls whose axes are the coordinates, with the same curvatures in another order at each node."""

    def _axes(self, curvature: Tensor, chance: Generator) -> Tensor:
        return curvature[torch.randperm(self.dim, generator=chance)]


@dataclass(frozen=True, slots=True)
class LogisticData:
    """One node's samples, and x* with all samples for testing; satisfies `starling.node.tasks.api.Data`."""

    z: Tensor
    y: Tensor
    best: Tensor
    everything: Samples

    @property
    def samples(self) -> int:
        return self.y.numel()

    def batch(self, size: int, generator: Generator) -> Samples:
        """`size` samples drawn with replacement; all of them, without chance, where there are no more than that."""
        if size >= self.samples:
            return self.z, self.y
        index = torch.randint(self.samples, (size,), generator=generator)
        return self.z[index], self.y[index]

    def held_out(self, size: int) -> Iterator[tuple[Tensor, Samples]]:
        """Yield one batch: the optimum, and all samples of all nodes."""
        yield self.best, self.everything


@dataclass(frozen=True, slots=True)
class Logistic(keys.Logistic, Convex):
    """Logistic regression on drawn samples, mostly of one label on each node: strongly convex and not quadratic.

    A batch_size of at least `samples` gives full gradients.
    """

    def data(self, source: Source, device: str) -> LogisticData:
        """Samples number `source.shard` of the problem that `source.seed` draws. Raises ConfigError as `check`."""
        self.check(source)
        dtype = DTYPES[self.dtype]
        drawn, best = _everything(self, source.seed)
        z, y = (part.to(device, dtype) for part in drawn[source.shard])
        every_z, every_y = (torch.cat(parts).to(device, dtype) for parts in zip(*drawn, strict=True))
        return LogisticData(z, y, best.to(device, dtype), (every_z, every_y))

    def loss(self, model: nn.Module, batch: Samples) -> Tensor:
        """Return f_i(w) on the batch."""
        z, y = batch
        w: Tensor = model()
        return softplus(-y * (z @ w)).mean() + 0.5 * self.mu * torch.dot(w, w)

    def score(self, model: nn.Module, batch: tuple[Tensor, Samples]) -> tuple[float, float, int]:
        """Return (error, mean of all f_i, 1)."""
        best, everything = batch
        return _error(model(), best), float(self.loss(model, everything)), 1

    def optimum(self, alive: Iterable[int], seed: int) -> Tensor:
        """Return (d,) float64: the optimum of the nodes `alive` alone."""
        return _newton([self.drawn(seed, node) for node in alive], self.mu)

    def drawn(self, seed: int, node: int) -> Samples:
        """Return samples of one node, float64: features around the node's centre, labels drawn by a common true weight vector."""
        float64 = torch.float64
        truth = 3.0 / math.sqrt(self.dim) * torch.randn(self.dim, generator=derived(seed, "logistic"), dtype=float64)
        chance = derived(seed, "logistic", node)
        centre, scale = torch.randn(2, self.dim, generator=chance, dtype=float64) * torch.tensor([[0.5], [0.3]])
        main = 1.0 if node % 2 else -1.0
        mainly = round(self.skew * self.samples)
        wanted = {main: mainly, -main: self.samples - mainly}
        drawn: dict[float, list[Tensor]] = {main: [], -main: []}
        while any(sum(map(len, drawn[label])) < count for label, count in wanted.items()):
            z = torch.randn(self.samples, self.dim, generator=chance, dtype=float64) * scale.exp() + centre
            positive = torch.rand(self.samples, generator=chance, dtype=float64) < torch.sigmoid(z @ truth)
            drawn[1.0].append(z[positive])
            drawn[-1.0].append(z[~positive])
        z = torch.cat([torch.cat(drawn[label])[:count] for label, count in wanted.items()])
        y = torch.cat([torch.full((count,), label, dtype=float64) for label, count in wanted.items()])
        return z, y


@lru_cache(maxsize=1)
def _everything(task: Logistic, seed: int) -> tuple[tuple[Samples, ...], Tensor]:
    """Samples of all nodes, and the optimum: the same for every node, and all of them ask."""
    drawn = tuple(task.drawn(seed, node) for node in range(task.nodes))
    return drawn, _newton(drawn, task.mu)


def _newton(drawn: Sequence[Samples], mu: float) -> Tensor:
    """Return (d,) by Newton's method from 0, which converges here as each f_i is a strongly convex logistic loss."""
    z, y = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    samples, dim = z.shape
    w = torch.zeros(dim, dtype=z.dtype)
    for _ in range(_NEWTON_STEPS):
        p = torch.sigmoid(-y * (z @ w))
        gradient = mu * w - z.T @ (p * y) / samples
        curvature = (z.T * (p * (1.0 - p))) @ z / samples + mu * torch.eye(dim, dtype=z.dtype)
        step = torch.linalg.solve(curvature, gradient)
        w = w - step
        if float(step.norm()) <= 1e-13 * max(1.0, float(w.norm())):
            break
    return w


def _error(x: Tensor, best: Tensor) -> float:
    return float((x - best).square().sum() / best.square().sum())
