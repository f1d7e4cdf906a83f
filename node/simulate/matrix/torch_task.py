"""Any task, for all nodes of a swarm: gradients of many models, through `torch.func` where there are many, else one by one.

Shapes: N rows, of which r or m are asked for, d parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, replace_all_batch_norm_modules_, vmap

from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.gossip.vector import Layout, as_named, bind, layout
from starling.node.tasks.api import Data, Task
from starling.node.tasks.evaluate import Result, evaluate
from starling.node.tasks.statistics import BATCHES, estimate

EVALUATION_BATCH = 256
STACK_FROM = 24
"""Rows from which torch.func is quicker than a loop; below, nodes are computed as by themselves, to the last bit."""
_STACKED_NUMBERS = (
    1 << 22
)  # parameters that torch.func works on at a time: their activations must fit into memory as well


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
        hits: how often a model does what an attack wants, of how many held-out samples of a batch; None: there is no such aim.
    """

    task: Task
    data: Sequence[Data]
    labels: Sequence[str]
    seed: int
    batch_size: int
    stack_from: int = STACK_FROM
    hits: Callable[[nn.Module, Any], tuple[int, int]] | None = None
    start: Tensor = field(init=False)
    stacks: bool = field(init=False)
    """Whether torch.func computes many nodes at once."""
    layout: Layout = field(init=False)
    _flat: Tensor = field(init=False)
    _gradient: Tensor = field(init=False)
    _loss: _Loss = field(init=False)
    _scored: nn.Module = field(init=False)
    _scored_flat: Tensor = field(init=False)

    def __post_init__(self) -> None:
        model = self.task.model(generator(self.seed, "model"))
        self.layout = layout_of(model)
        self._scored = copy.deepcopy(model)
        self._scored_flat, _ = bind(self._scored, self.layout)
        replace_all_batch_norm_modules_(model)  # local steps normalise by the batch; running statistics are for scores
        self._loss = _Loss(self.task, model)
        self._flat, self._gradient = bind(model, self.layout)
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

    @torch.no_grad()
    def losses(self, rows: Tensor, done: Tensor, x: Tensor) -> Tensor:
        """See `Problem.losses`."""
        self._loss.train()
        worth = torch.empty(x.shape[:2])
        for place, (row, step) in enumerate(zip(rows.tolist(), done.tolist(), strict=True)):
            batch = self._batch(row, step)
            for number, model in enumerate(x[place]):
                self._flat.copy_(model)
                worth[place, number] = self._loss(batch)
        return worth.to(x.dtype)

    def score(self, x: Tensor, alive: Sequence[int]) -> tuple[float, float]:
        """The task's own, on its held-out data; normalisation statistics are estimated from the data of all `alive` rows."""
        return self._score(x, alive)

    def values(self, x: Tensor, alive: Sequence[int]) -> list[float]:
        """One evaluation each, with normalisation statistics of the row's own data."""
        return [self._score(row, [alive[at * len(alive) // len(x)]])[0] for at, row in enumerate(x)]

    def _score(self, x: Tensor, rows: Sequence[int]) -> tuple[float, float]:
        self._set_scored(x, rows)
        for slice_ in evaluate(self.task, self._scored, self.data[0], EVALUATION_BATCH):
            if isinstance(slice_, Result):
                return slice_.value, slice_.loss
        raise AssertionError("an evaluation ends with a Result")

    def _set_scored(self, x: Tensor, rows: Sequence[int]) -> None:
        """Parameters, and normalisation statistics as `starling.node.engine.learner` estimates them, of the data of `rows` in turn."""
        self._scored_flat.copy_(x)
        for _ in estimate(self.task, self._scored, (self._statistics_batch(rows, turn) for turn in range(BATCHES))):
            pass

    def _statistics_batch(self, rows: Sequence[int], turn: int) -> Any:
        row = rows[turn % len(rows)]
        return self.data[row].batch(self.batch_size, generator(self.seed, "statistics", self.labels[row], turn))

    @torch.no_grad()
    def success(self, x: Tensor) -> float | None:
        """See `Problem.success`."""
        if self.hits is None:
            return None
        done = of = 0
        for at, model in enumerate(x):
            self._set_scored(model, [at * len(self.data) // len(x)])
            self._scored.eval()
            for batch in self.data[0].held_out(EVALUATION_BATCH):
                hits, samples = self.hits(self._scored, batch)
                done, of = done + hits, of + samples
        return done / of if of else None

    def _batch(self, row: int, step: int) -> Any:
        return self.data[row].batch(self.batch_size, generator(self.seed, "batch", self.labels[row], step))

    def _many(self, x: Tensor, batches: Sequence[Any]) -> Tensor:
        gradients, losses = vmap(grad_and_value(self._value))(x, stacked(batches))
        return torch.where(torch.isfinite(losses)[:, None], gradients, torch.nan)

    def _value(self, flat: Tensor, batch: Any) -> Tensor:
        named = {f"model.{name}": part for name, part in as_named(flat, self.layout).items()}
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


def layout_of(model: nn.Module) -> Layout:
    """Where a model's parameters lie.

    Raises:
        ConfigError: it cannot be one flat vector.
    """
    try:
        return layout(model)
    except ValueError as error:
        raise ConfigError(f"task.kind: {error}") from error
