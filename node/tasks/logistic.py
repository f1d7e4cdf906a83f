"""Logistic regression on data that are drawn, mostly of one label on each node: strongly convex, and unlike a bowl not quadratic.

f_i(w) = mean log(1 + exp(−y zᵀw)) + ½ mu ‖w‖² over the samples (z, y) of node i. The best point for all has no formula; Newton's
method finds it to the last digits.

Shapes: d = dim, s samples of a node, m of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import softplus

from starling.gossip.rng import generator as derived
from starling.node.tasks.api import Source
from starling.node.tasks.checks import choice, own_problem, real, whole
from starling.node.tasks.quadratic import DTYPES, Point

Samples = tuple[Tensor, Tensor]
"""(m, d) features and (m,) labels, −1 or 1."""

_NEWTON_STEPS = 60


@dataclass(frozen=True, slots=True)
class LogisticData:
    """One node's samples, and x* with all samples for testing; satisfies `starling.node.tasks.api.Data`."""

    z: Tensor
    y: Tensor
    best: Tensor
    everything: Samples

    @property
    def samples(self) -> int:
        """Samples held here."""
        return self.y.numel()

    def batch(self, size: int, generator: Generator) -> Samples:
        """`size` samples drawn with replacement; all of them, without chance, where there are no more than that."""
        if size >= self.samples:
            return self.z, self.y
        index = torch.randint(self.samples, (size,), generator=generator)
        return self.z[index], self.y[index]

    def held_out(self, size: int) -> Iterator[tuple[Tensor, Samples]]:
        """One batch: the optimum, and all samples of all nodes."""
        yield self.best, self.everything


@dataclass(frozen=True, slots=True)
class Logistic:
    """How near to the common optimum of a classification? Node i has samples of its own: set partition.shards to `nodes`.

    A batch_size of at least `samples` gives full gradients.

    Args:
        dim: d, 1 to 4,096.
        nodes: n, 1 to 4,096.
        samples: of each node, 2 to 65,536.
        skew: share of the samples that has the node's main label, by turns −1 and 1, in [0.5, 1].
        mu: weight of the penalty on ‖w‖²/2, 1e-6 to 10.
        dtype: "float32" or "float64".
    """

    dim: int = 100
    nodes: int = 16
    samples: int = 200
    skew: float = 0.9
    mu: float = 0.01
    dtype: str = "float32"

    def __post_init__(self) -> None:
        whole("dim", self.dim, 1, 4096)
        whole("nodes", self.nodes, 1, 4096)
        whole("samples", self.samples, 2, 1 << 16)
        real("skew", self.skew, 0.5, 1.0)
        real("mu", self.mu, 1e-6, 10.0)
        choice("dtype", self.dtype, DTYPES)

    @property
    def metric(self) -> str:
        """‖w − w*‖² / ‖w*‖² with the optimum w* of all `nodes` nodes' samples."""
        return "error"

    @property
    def higher_is_better(self) -> bool:
        """No: 0 is exact, 1 is where everybody starts."""
        return False

    def model(self, generator: Generator) -> nn.Module:
        """The point 0, without chance."""
        return Point(self.dim, DTYPES[self.dtype])

    def data(self, source: Source, device: str) -> LogisticData:
        """Samples number `source.shard` of the problem that `source.seed` draws.

        Raises:
            ConfigError: a path is given, or there are not as many shards as nodes.
        """
        own_problem("logistic", source, self.nodes)
        dtype = DTYPES[self.dtype]
        drawn, best = _everything(self, source.seed)
        best = best.to(device, dtype)
        z, y = (part.to(device, dtype) for part in drawn[source.shard])
        every_z, every_y = (torch.cat(parts).to(device, dtype) for parts in zip(*drawn, strict=True))
        return LogisticData(z, y, best, (every_z, every_y))

    def loss(self, model: nn.Module, batch: Samples) -> Tensor:
        """f_i(w) on the batch."""
        z, y = batch
        w: Tensor = model()
        return softplus(-y * (z @ w)).mean() + 0.5 * self.mu * torch.dot(w, w)

    def score(self, model: nn.Module, batch: tuple[Tensor, Samples]) -> tuple[float, float, int]:
        """(error, mean of all f_i, 1)."""
        best, everything = batch
        w = model()
        return float((w - best).square().sum() / best.square().sum()), float(self.loss(model, everything)), 1

    def optimum(self, alive: Iterable[int], seed: int) -> Tensor:
        """(d,) float64: the best point for the samples of `alive` alone."""
        return _optimum([self.drawn(seed, node) for node in alive], self.mu)

    def drawn(self, seed: int, node: int) -> Samples:
        """Samples of one node, float64: features around a centre of its own, labels by chance from one common truth."""
        float64 = torch.float64
        truth = 3.0 / math.sqrt(self.dim) * torch.randn(self.dim, generator=derived(seed, "logistic"), dtype=float64)
        chance = derived(seed, "logistic", node)
        centre, scale = torch.randn(2, self.dim, generator=chance, dtype=float64) * torch.tensor([[0.5], [0.3]])
        main = 1.0 if node % 2 else -1.0
        mainly = round(self.skew * self.samples)
        wanted = {main: mainly, -main: self.samples - mainly}
        found: dict[float, list[Tensor]] = {main: [], -main: []}
        while any(sum(map(len, found[label])) < count for label, count in wanted.items()):
            z = torch.randn(self.samples, self.dim, generator=chance, dtype=float64) * scale.exp() + centre
            positive = torch.rand(self.samples, generator=chance, dtype=float64) < torch.sigmoid(z @ truth)
            found[1.0].append(z[positive])
            found[-1.0].append(z[~positive])
        z = torch.cat([torch.cat(found[label])[:count] for label, count in wanted.items()])
        y = torch.cat([torch.full((count,), label, dtype=float64) for label, count in wanted.items()])
        return z, y


@lru_cache(maxsize=1)
def _everything(task: Logistic, seed: int) -> tuple[tuple[Samples, ...], Tensor]:
    """Samples of all nodes, and the optimum: the same for every node, and all of them ask."""
    drawn = tuple(task.drawn(seed, node) for node in range(task.nodes))
    return drawn, _optimum(drawn, task.mu)


def _optimum(drawn: Sequence[Samples], mu: float) -> Tensor:
    """(d,) by Newton's method from 0, which converges here as each f_i is a strongly convex logistic loss."""
    z, y = (torch.stack(parts) for parts in zip(*drawn, strict=True))
    n, s, d = z.shape
    z, y = z.reshape(n * s, d), y.reshape(n * s)
    w = torch.zeros(d, dtype=z.dtype)
    for _ in range(_NEWTON_STEPS):
        p = torch.sigmoid(-y * (z @ w))
        gradient = mu * w - z.T @ (p * y) / (n * s)
        curvature = (z.T * (p * (1.0 - p))) @ z / (n * s) + mu * torch.eye(d, dtype=z.dtype)
        step = torch.linalg.solve(curvature, gradient)
        w = w - step
        if float(step.norm()) <= 1e-13 * max(1.0, float(w.norm())):
            break
    return w
