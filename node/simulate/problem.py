"""What all nodes of a swarm learn, at once: gradients and figures of merit for many models side by side.

Every batch is drawn as a whole node draws it, from `generator(seed, "batch", node label, local step)`, so both walk one trajectory.
The bowls have formulas; any other task goes through `torch.func` where there are many nodes. One that cannot (a loss that branches on
values, a batch that is no tree of tensors) is computed node by node.

Shapes: N rows, of which r or m are asked for, d parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from gossip.errors import ConfigError
from gossip.rng import generator
from gossip.vector import Layout, as_named, bind, layout
from node.config import Manifest
from node.tasks.api import Data, Source, Task
from node.tasks.catalogue import task
from node.tasks.diagonal import Diagonal
from node.tasks.evaluate import Result, evaluate
from node.tasks.logistic import Logistic
from node.tasks.quadratic import DTYPES, Quadratic, gradient_noise

EVALUATION_BATCH = 256
STACK_FROM = 24
"""Rows from which torch.func is quicker than a loop; below, nodes are computed as by themselves, to the last bit."""
_STACKED_NUMBERS = (
    1 << 22
)  # parameters that torch.func works on at a time: their activations must fit into memory as well


class Problem(Protocol):
    """All nodes' learning."""

    @property
    def start(self) -> Tensor:
        """(d,) where every node begins."""
        ...

    @property
    def metric(self) -> str:
        """Its name."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """Which way it improves."""
        ...

    @property
    def cheap(self) -> bool:
        """All nodes can be measured: it costs no more than a local step."""
        ...

    def gradients(self, rows: Tensor, done: Tensor, x: Tensor) -> Tensor:
        """Each row's own gradient; not a number where its loss is none.

        Args:
            rows: (r,) int64, ascending.
            done: (r,) int64, local steps that each has done before.
            x: (r, d) models; not modified.
        """
        ...

    def score(self, x: Tensor, alive: Sequence[int]) -> tuple[float, float]:
        """(metric, loss) of one model x (d,) on held-out data.

        Args:
            x: the model.
            alive: rows that take part, ascending.
        """
        ...

    def values(self, x: Tensor, alive: Sequence[int]) -> list[float]:
        """Metric of each of x (m, d)."""
        ...


# --- many models through torch.func ---------------------------------------------------------------------------


class _Loss(nn.Module):
    """A task's loss as a module, so that whatever parameters it looks at are those put in its place."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._task = task

    def forward(self, batch: Any) -> Tensor:
        """Scalar."""
        return self._task.loss(self.model, batch)


@dataclass(slots=True)
class Learned:
    """Any task.

    Args:
        task: what is learned.
        data: of each row.
        labels: of each row: they seed its batches.
        seed: the swarm's.
        batch_size: samples of a local step.
        stack_from: rows from which torch.func is used, if it can be.
    """

    task: Task
    data: Sequence[Data]
    labels: Sequence[str]
    seed: int
    batch_size: int
    stack_from: int = STACK_FROM
    start: Tensor = field(init=False)
    stacks: bool = field(init=False)
    """Whether torch.func computes many nodes at once."""
    _layout: Layout = field(init=False)
    _flat: Tensor = field(init=False)
    _gradient: Tensor = field(init=False)
    _loss: _Loss = field(init=False)

    def __post_init__(self) -> None:
        model = self.task.model(generator(self.seed, "model"))
        self._layout = _layout(model)
        self._loss = _Loss(self.task, model)
        self._flat, self._gradient = bind(model, self._layout)
        self.start = self._flat.clone()
        self.stacks = len(self.labels) >= self.stack_from and self._can_stack()

    @property
    def metric(self) -> str:
        """The task's."""
        return self.task.metric

    @property
    def higher_is_better(self) -> bool:
        """The task's."""
        return self.task.higher_is_better

    @property
    def cheap(self) -> bool:
        """An evaluation goes through all held-out data."""
        return False

    def gradients(self, rows: Tensor, done: Tensor, x: Tensor) -> Tensor:
        """See `Problem.gradients`."""
        self._loss.train()
        batches = [self._batch(row, step) for row, step in zip(rows.tolist(), done.tolist(), strict=True)]
        if not self.stacks:
            return torch.stack([self._one(row, batch) for row, batch in zip(x, batches, strict=True)])
        chunk = max(1, _STACKED_NUMBERS // x.shape[1])
        parts = [
            self._many(x[begin : begin + chunk], batches[begin : begin + chunk]) for begin in range(0, len(x), chunk)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def score(self, x: Tensor, alive: Sequence[int]) -> tuple[float, float]:
        """The task's own, on its held-out data."""
        self._flat.copy_(x)
        for slice_ in evaluate(self.task, self._loss.model, self.data[0], EVALUATION_BATCH):
            if isinstance(slice_, Result):
                return slice_.value, slice_.loss
        raise AssertionError("an evaluation ends with a Result")

    def values(self, x: Tensor, alive: Sequence[int]) -> list[float]:
        """One evaluation each."""
        return [self.score(row, alive)[0] for row in x]

    def _batch(self, row: int, step: int) -> Any:
        return self.data[row].batch(self.batch_size, generator(self.seed, "batch", self.labels[row], step))

    def _many(self, x: Tensor, batches: Sequence[Any]) -> Tensor:
        gradients, losses = vmap(grad_and_value(self._value))(x, stacked(batches))
        return torch.where(torch.isfinite(losses)[:, None], gradients, torch.nan)

    def _value(self, flat: Tensor, batch: Any) -> Tensor:
        named = {f"model.{name}": part for name, part in as_named(flat, self._layout).items()}
        value: Tensor = functional_call(self._loss, named, (batch,))
        return value

    def _one(self, x: Tensor, batch: Any) -> Tensor:
        self._flat.copy_(x)
        self._gradient.zero_()
        loss = self._loss(batch)
        loss.backward()
        return self._gradient.clone() if bool(torch.isfinite(loss)) else torch.full_like(self._gradient, torch.nan)

    def _can_stack(self) -> bool:
        """Try it on the first two rows. A task is code that others wrote: what it raises under vmap has many names."""
        try:
            self._many(self.start.repeat(2, 1), [self._batch(row, 0) for row in (0, min(1, len(self.data) - 1))])
        except (TypeError, RuntimeError, ValueError, AttributeError):
            return False
        return True


def stacked(batches: Sequence[Any]) -> Any:
    """Equal trees of tensors -> one tree with a dimension in front.

    Raises:
        TypeError: a leaf is no tensor.
        RuntimeError: shapes differ.
    """
    first = batches[0]
    match first:
        case Tensor():
            return torch.stack(list(batches))
        case dict():
            return {key: stacked([batch[key] for batch in batches]) for key in first}
        case tuple() | list():
            return tuple(stacked(parts) for parts in zip(*batches, strict=True))
        case _:
            raise TypeError(f"a batch of {type(first).__name__} is no tree of tensors")


# --- problems with a known answer -----------------------------------------------------------------------------


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

    def gradients(self, rows: Tensor, done: Tensor, x: Tensor) -> Tensor:
        """See `Problem.gradients`."""
        at = place(self.shards[rows])
        gradients = self._slope(at, x - self.b[at])
        if self.noise is not None:
            chance, sigma = self.noise
            noise = (chance(row, step) for row, step in zip(rows.tolist(), done.tolist(), strict=True))
            gradients += torch.stack([gradient_noise(x[0], sigma, each) for each in noise])
        return gradients

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

    def score(self, x: Tensor, alive: Sequence[int]) -> tuple[float, float]:
        """(error, loss on all samples of all nodes)."""
        return self.optimum.errors(x[None], alive)[0], self.learned.score(x, alive)[1]

    def values(self, x: Tensor, alive: Sequence[int]) -> list[float]:
        """Errors."""
        return self.optimum.errors(x, alive)


def place(rows: Tensor) -> slice | Tensor:
    """(r,) ascending -> a slice where they follow one another, which copies nothing."""
    if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows) and bool((rows.diff() == 1).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


# --- making one -----------------------------------------------------------------------------------------------


def problem(manifest: Manifest, labels: Sequence[str], stack_from: int = STACK_FROM) -> Problem:
    """The problem of a swarm.

    Args:
        manifest: task, partition and seed; row i has shard i, over again where there are more rows than shards.
        labels: of each row.
        stack_from: see `Learned`.

    Raises:
        ConfigError: the task or its data cannot be had.
    """
    made = task(manifest.task.kind, manifest.task.params)
    seed, parts = manifest.seed, manifest.partition.shards
    shards = [row % parts for row in range(len(labels))]
    match made:
        case Quadratic() | Diagonal():
            _check_parts(made.nodes, parts)
            return _bowls(made, seed, shards, labels)
        case _:
            learned = Learned(made, _data(made, manifest, shards), labels, seed, manifest.task.batch_size, stack_from)
    if isinstance(made, Logistic):
        logistic = made
        return Convex(learned, Optimum(lambda alive: logistic.optimum([shards[row] for row in alive], seed)))
    return learned


def _bowls(made: Quadratic | Diagonal, seed: int, shards: Sequence[int], labels: Sequence[str]) -> Bowls:
    used, dtype = max(shards) + 1, DTYPES[made.dtype]
    A, b = torch.empty(0), torch.empty(used, made.dim, dtype=dtype)
    for shard in range(used):
        if isinstance(made, Diagonal):
            own, b[shard] = made.bowl(seed, shard)
        else:
            bowl = made.bowl(seed, shard)
            own, b[shard] = bowl.A, bowl.b
        if shard == 0:
            A = torch.empty(used, *own.shape, dtype=dtype)
        A[shard] = own

    def chance(row: int, step: int) -> torch.Generator:
        return generator(seed, "batch", labels[row], step)

    optimum = Optimum(lambda alive: made.optimum([shards[row] for row in alive], seed))
    return Bowls(A, b, torch.tensor(shards), optimum, (chance, float(made.noise)) if made.noise else None)


def _data(made: Task, manifest: Manifest, shards: Sequence[int]) -> list[Data]:
    """Of each row; rows of one shard share it."""
    held: Mapping[int, Data] = {
        shard: made.data(Source(None, manifest.partition, shard, manifest.seed), "cpu") for shard in sorted(set(shards))
    }
    return [held[shard] for shard in shards]


def _layout(model: nn.Module) -> Layout:
    try:
        return layout(model)
    except ValueError as error:
        raise ConfigError(f"task.kind: {error}") from error


def _check_parts(nodes: int, parts: int) -> None:
    if nodes != parts:
        raise ConfigError(f"partition.shards: must be task.params.nodes = {nodes}, got {parts}")
