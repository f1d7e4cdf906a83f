"""Problems with a known answer, for all nodes of a swarm: measured against the optimum of whoever is alive.

Shapes: N rows, of which r or m are asked for, s shards, d parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from starling.gossip.vector import Layout
from starling.node.simulate.matrix.table import place
from starling.node.simulate.matrix.torch_task import Learned
from starling.node.tasks.quadratic import gradient_noise


@dataclass(slots=True)
class Optimum:
    """The best point for whoever is alive, computed anew when that changes.

    Args:
        find: rows -> (d,) float64.
    """

    find: Callable[[Sequence[int]], Tensor]
    _alive: tuple[int, ...] = ()
    _best: Tensor = field(init=False, default_factory=lambda: torch.zeros(0))

    def of(self, alive: Sequence[int]) -> Tensor:
        """(d,) float64."""
        if tuple(alive) != self._alive:
            self._alive, self._best = tuple(alive), self.find(alive)
        return self._best

    def errors(self, x: Tensor, alive: Sequence[int]) -> list[float]:
        """‖x − x*‖² / ‖x*‖² of each of x (m, d)."""
        best = self.of(alive)
        scale = best.square().sum()
        return [float((row.double() - best).square().sum() / scale) for row in x]


@dataclass(slots=True)
class Bowls:
    """`quadratic` and `diagonal`: f_i(x) = ½ (x − b_i)ᵀ A_i (x − b_i).

    Args:
        A: (s, d, d), or (s, d) where it is diagonal.
        b: (s, d) of each shard.
        shards: (N,) int64: which each row has.
        optimum: of whoever is alive.
        noise: generator of a row's gradient noise (row, local step) and its standard deviation; None for none.
    """

    A: Tensor
    b: Tensor
    shards: Tensor
    optimum: Optimum
    noise: tuple[Callable[[int, int], torch.Generator], float] | None = None
    metric: str = "error"
    higher_is_better: bool = False
    cheap: bool = True

    @property
    def start(self) -> Tensor:
        """The point 0."""
        return torch.zeros_like(self.b[0])

    @property
    def layout(self) -> Layout:
        """One parameter, a vector."""
        return Layout(("x",), (tuple(self.b[0].shape),), self.b.dtype)

    def gradients(self, rows: Tensor, done: Tensor, x: Tensor) -> Tensor:
        """See `Problem.gradients`."""
        at = place(self.shards[rows])
        gradients = self._slope(at, x - self.b[at])
        if self.noise is not None:
            chance, sigma = self.noise
            noise = (chance(row, step) for row, step in zip(rows.tolist(), done.tolist(), strict=True))
            gradients += torch.stack([gradient_noise(x[0], sigma, each) for each in noise])
        return gradients

    def losses(self, rows: Tensor, done: Tensor, x: Tensor) -> Tensor:
        """See `Problem.losses`: each row's own bowl, without noise."""
        at = place(self.shards[rows])
        away = x - self.b[at][:, None]
        columns = [torch.linalg.vecdot(self._slope(at, each), each) / 2 for each in away.unbind(1)]
        return torch.stack(columns, 1)

    def score(self, x: Tensor, alive: Sequence[int]) -> tuple[float, float]:
        """(error, how much the mean of the living's bowls is above its least value)."""
        best = self.optimum.of(alive)
        away = (x.double() - best).to(x.dtype)
        at = place(self.shards[torch.tensor(alive)])
        steep = self._slope(at, away.expand(len(alive), -1))
        return self.optimum.errors(x[None], alive)[0], float(0.5 * (steep @ away).mean())

    def values(self, x: Tensor, alive: Sequence[int]) -> list[float]:
        """Errors."""
        return self.optimum.errors(x, alive)

    def success(self, x: Tensor) -> None:
        """There are no samples."""
        return

    def _slope(self, at: slice | Tensor, away: Tensor) -> Tensor:
        """A (x − b), a fresh tensor."""
        A = self.A[at]
        return torch.mul(A, away) if A.dim() == 2 else torch.bmm(A, away.unsqueeze(-1)).squeeze(-1)


@dataclass(slots=True)
class Convex:
    """`logistic`: measured against the optimum of whoever is alive."""

    learned: Learned
    optimum: Optimum
    cheap: bool = True

    @property
    def start(self) -> Tensor:
        """The point 0."""
        return self.learned.start

    @property
    def layout(self) -> Layout:
        """The task's."""
        return self.learned.layout

    @property
    def metric(self) -> str:
        """The task's."""
        return self.learned.metric

    @property
    def higher_is_better(self) -> bool:
        """The task's."""
        return self.learned.higher_is_better

    def gradients(self, rows: Tensor, done: Tensor, x: Tensor) -> Tensor:
        """See `Problem.gradients`."""
        return self.learned.gradients(rows, done, x)

    def losses(self, rows: Tensor, done: Tensor, x: Tensor) -> Tensor:
        """See `Problem.losses`."""
        return self.learned.losses(rows, done, x)

    def score(self, x: Tensor, alive: Sequence[int]) -> tuple[float, float]:
        """(error, loss on all samples of all nodes)."""
        return self.optimum.errors(x[None], alive)[0], self.learned.score(x, alive)[1]

    def values(self, x: Tensor, alive: Sequence[int]) -> list[float]:
        """Errors."""
        return self.optimum.errors(x, alive)

    def success(self, x: Tensor) -> float | None:
        """See `Problem.success`."""
        return self.learned.success(x)
