"""Learning problems of all nodes of a swarm at once: gradients and metrics for many models in parallel.

Quadratics have formulas (`Bowls`). Any other task is differentiated (`TorchTask`), through `torch.func` where there are many nodes, else
one by one. Every batch is drawn as a whole node draws it, from `generator(seed, "batch", node label, local step)`, so both follow one
trajectory.

Shapes: N rows, of which r or m are requested, s shards, d parameters.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, replace_all_batch_norm_modules_, vmap

from starling.gossip.binding import Binding, as_parameters, bound
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.gossip.vector import Layout, flatten, layout
from starling.node.catalogues import task
from starling.node.config.schema import Manifest
from starling.node.engine.initial_model import initial
from starling.node.simulate.matrix.byzantine import poisoned, success
from starling.node.simulate.matrix.table import Rows, adjacent
from starling.node.tasks.api import Data, Source, Task
from starling.node.tasks.convex import DTYPES, BowlData, Logistic, Quadratic, gradient_noise
from starling.node.tasks.evaluate import BATCHES, Result, TaskLoss, estimate, evaluate
from starling.node.tasks.reserved import Reserved, data_of
from starling.robust.attacks.api import Attack

EVALUATION_BATCH = 256
STACK_FROM = 24  # rows from which torch.func is quicker than a loop; below, each as by itself, to the last bit
_STACKED_NUMBERS = 1 << 22  # parameters that torch.func works on at a time: their activations must fit into memory


@dataclass(slots=True)
class Optimum:
    """The best point for the living nodes, recomputed when these change."""

    find: Callable[[Sequence[int]], Tensor]  # rows -> (d,) float64
    _alive: tuple[int, ...] = ()
    _best: Tensor = field(init=False, default_factory=lambda: torch.zeros(0))

    def of(self, alive: Sequence[int]) -> Tensor:
        """Return the optimum (d,) float64 of the rows that are alive."""
        if tuple(alive) != self._alive:
            self._alive, self._best = tuple(alive), self.find(alive)
        return self._best

    def errors(self, x: Tensor, alive: Sequence[int]) -> list[float]:
        """‖x − x*‖² / ‖x*‖² of each of x (m, d)."""
        best = self.of(alive)
        scale = best.square().sum()
        return [float((row.double() - best).square().sum() / scale) for row in x]


@dataclass(slots=True)
class TorchTask:
    """Any task of the product, differentiated by torch."""

    task: Task
    data: Sequence[Data]  # of each row
    labels: Sequence[str]  # of each row: they seed its batches
    seed: int
    batch_size: int
    stack_from: int = STACK_FROM  # rows from which torch.func is used, if it can be
    # how often a model does what an attack wants, of how many held-out samples of a batch; None: there is no such aim
    hits: Callable[[nn.Module, Any], tuple[int, int]] | None = None
    optimum: Optimum | None = None  # point from which models' distance is the metric; None: the task's own metric
    begin: nn.Module | None = None  # what every node begins with; None: a random model
    own: bool = False  # models are their nodes' own, each measured by held-out samples like its node's
    start: Tensor = field(init=False)  # (d,) where every node begins
    stacks: bool = field(init=False)  # whether torch.func computes many nodes at once
    layout: Layout = field(init=False)
    metric: str = field(init=False)
    higher_is_better: bool = field(init=False)
    cheap: bool = field(init=False)  # all nodes can be measured: it costs no more than a local step
    _model: Binding = field(init=False)
    _loss: TaskLoss = field(init=False)
    _scored: nn.Module = field(init=False)
    _scored_model: Binding = field(init=False)

    def __post_init__(self) -> None:
        self.metric, self.higher_is_better = self.task.metric, self.task.higher_is_better
        self.cheap = self.optimum is not None
        model = self.begin or self.task.model(generator(self.seed, "model"))
        self.layout = layout_of(model)
        self._scored = copy.deepcopy(model)
        self._scored_model = bound(self._scored, self.layout)
        replace_all_batch_norm_modules_(model)  # local steps normalise by the batch; running statistics are for scores
        self._loss = TaskLoss(self.task, model)
        self._model = bound(model, self.layout)
        self.start = self._model.x.clone()
        self.stacks = len(self.labels) >= self.stack_from and self._can_stack()

    def gradients(self, rows: Tensor, done: Tensor, x: Tensor) -> Tensor:
        """Gradients of models x (r, d) of rows (r,), ascending, which have done (r,) local steps; NaN where a loss is not finite."""
        self._loss.train()
        batches = [self._batch(row, step) for row, step in zip(rows.tolist(), done.tolist(), strict=True)]
        if not self.stacks:
            return torch.stack([self._one(row, batch) for row, batch in zip(x, batches, strict=True)])
        chunk = max(1, _STACKED_NUMBERS // x.shape[1])
        starts = range(0, len(x), chunk)
        return torch.cat([self._many(x[start : start + chunk], batches[start : start + chunk]) for start in starts])

    @property
    def model(self) -> nn.Module:
        """A model with the parameters' shapes, whatever its values."""
        return self._loss.model

    @property
    def samples(self) -> list[int]:
        """Training samples of each row."""
        return [each.samples for each in self.data]

    @torch.no_grad()
    def losses(self, rows: Tensor, done: Tensor, x: Tensor) -> Tensor:
        """Return (r, m), losses of models x (r, m, d) on the batch of each row's (r,) local step after `done` (r,)."""
        self._loss.train()
        return self._losses_on([self._batch(*each) for each in zip(rows.tolist(), done.tolist(), strict=True)], x)

    @torch.no_grad()
    def aside(self, rows: Tensor, x: Tensor) -> Tensor:
        """Return (r, m), losses of models x (r, m, d) on what each row set aside."""
        self._loss.train()
        data = [self.data[row] for row in rows.tolist()]
        return self._losses_on([each.aside for each in data if isinstance(each, Reserved)], x)

    def _losses_on(self, batches: Sequence[Any], x: Tensor) -> Tensor:
        losses = torch.empty(x.shape[:2])
        for place, batch in enumerate(batches):
            for number, model in enumerate(x[place]):
                self._model.x.copy_(model)
                self._model.load()
                losses[place, number] = self._loss(batch)
        return losses.to(x.dtype)

    def score(self, x: Tensor, alive: Sequence[int]) -> tuple[float, float]:
        """Return (metric, loss) of one model x (d,) on held-out data, with normalisation statistics of the data of all rows `alive`,
        ascending.
        """
        return self._score(x, alive, self.data[0])

    def _score(self, x: Tensor, alive: Sequence[int], data: Data, *, own: bool = False) -> tuple[float, float]:
        self._set_scored(x, alive)
        for slice_ in evaluate(self.task, self._scored, data, EVALUATION_BATCH, own=own):
            if isinstance(slice_, Result):
                value = slice_.value if self.optimum is None else self.optimum.errors(x[None], alive)[0]
                return value, slice_.loss
        raise AssertionError("an evaluation ends with a Result")

    def values(self, x: Tensor, alive: Sequence[int]) -> list[float]:
        """Metric of each of x (m, d), evenly spread over `alive`, with normalisation statistics of the row's own data."""
        if self.optimum is not None:
            return self.optimum.errors(x, alive)
        drawn = [alive[at * len(alive) // len(x)] for at in range(len(x))]
        return [self._score(row, [who], self.data[who], own=self.own)[0] for row, who in zip(x, drawn, strict=True)]

    @torch.no_grad()
    def success(self, x: Tensor) -> float | None:
        """Return the success rate in [0, 1] of an attack on models x (m, d); None if it cannot be counted."""
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

    def _set_scored(self, x: Tensor, rows: Sequence[int]) -> None:
        """Parameters, and normalisation statistics as `starling.node.engine.local` estimates them, of the data of `rows` in turn."""
        self._scored_model.x.copy_(x)
        self._scored_model.load()
        drawn = ((rows[number % len(rows)], number) for number in range(BATCHES))
        for _ in estimate(self.task, self._scored, (self._batch(*each, "statistics") for each in drawn)):
            pass

    def _batch(self, row: int, number: int, use: str = "batch") -> Any:
        return self.data[row].batch(self.batch_size, generator(self.seed, use, self.labels[row], number))

    def _many(self, x: Tensor, batches: Sequence[Any]) -> Tensor:
        gradients, losses = vmap(grad_and_value(self._value))(x, stacked(batches))
        return torch.where(torch.isfinite(losses)[:, None], gradients, torch.nan)

    def _value(self, flat: Tensor, batch: Any) -> Tensor:
        named = {f"model.{name}": part for name, part in as_parameters(flat, self.layout, self.model).items()}
        value: Tensor = functional_call(self._loss, named, (batch,))
        return value

    def _one(self, x: Tensor, batch: Any) -> Tensor:
        gradient = self._model.gradient()
        self._model.x.copy_(x)
        self._model.load()
        gradient.zero_()
        loss = self._loss(batch)
        loss.backward()
        self._model.gather()
        return gradient.clone() if bool(torch.isfinite(loss)) else torch.full_like(gradient, torch.nan)

    def _can_stack(self) -> bool:
        """Try it on the first two rows. A task is code that others wrote: what it raises under vmap has many names."""
        try:
            self._many(self.start.repeat(2, 1), [self._batch(row, 0) for row in (0, min(1, len(self.data) - 1))])
        except (TypeError, RuntimeError, ValueError, AttributeError):
            return False
        return True


@dataclass(slots=True)
class Bowls:
    """`quadratic` and `diagonal`: f_i(x) = ½ (x − b_i)ᵀ A_i (x − b_i). The same calls as of `TorchTask`."""

    task: Quadratic
    labels: Sequence[str]  # of each row
    shards: Sequence[int]  # (N,) shard of each row
    seed: int
    model: nn.Module  # the point that every node begins with
    start: Tensor = field(init=False)  # (d,) that point
    layout: Layout = field(init=False)
    optimum: Optimum = field(init=False)
    b: Tensor = field(init=False)  # (s, d) of each shard
    _A: Tensor = field(init=False)  # (s, d, d), or (s, d) where it is diagonal
    metric: ClassVar[str] = Quadratic.metric
    higher_is_better: ClassVar[bool] = Quadratic.higher_is_better
    cheap: ClassVar[bool] = True

    def __post_init__(self) -> None:
        dtype, self.layout = DTYPES[self.task.dtype], layout(self.model)
        self.start = flatten(self.model, self.layout)
        self.optimum = Optimum(lambda alive: self.task.optimum([self.shards[row] for row in alive], self.seed))
        for shard in range(max(self.shards) + 1):
            bowl = self.task.bowl(self.seed, shard)
            if shard == 0:
                self._A, self.b = (part.new_empty(max(self.shards) + 1, *part.shape, dtype=dtype) for part in (bowl.A, bowl.b))
            self._A[shard], self.b[shard] = bowl.A, bowl.b

    def gradients(self, rows: Tensor, done: Tensor, x: Tensor) -> Tensor:
        """See `TorchTask.gradients`."""
        at = self._at(rows)
        gradients = self._slope(at, x - self.b[at])
        if self.task.noise:
            for place, (row, step) in enumerate(zip(rows.tolist(), done.tolist(), strict=True)):
                rng = generator(self.seed, "batch", self.labels[row], step)
                gradients[place] += gradient_noise(x[0], self.task.noise, rng)
        return gradients

    @property
    def samples(self) -> list[int]:
        """See `TorchTask.samples`."""
        return [BowlData.samples] * len(self.labels)

    def losses(self, rows: Tensor, done: Tensor, x: Tensor) -> Tensor:
        """See `TorchTask.losses`: each row's own bowl, without noise."""
        at = self._at(rows)
        away = x - self.b[at][:, None]
        columns = [torch.linalg.vecdot(self._slope(at, each), each) / 2 for each in away.unbind(1)]
        return torch.stack(columns, 1)

    def score(self, x: Tensor, alive: Sequence[int]) -> tuple[float, float]:
        """Return (error, how much the mean of the living's bowls is above its least value)."""
        away = (x.double() - self.optimum.of(alive)).to(x.dtype)
        slopes = self._slope(self._at(torch.tensor(alive)), away.expand(len(alive), -1))
        return self.optimum.errors(x[None], alive)[0], float(0.5 * (slopes @ away).mean())

    def values(self, x: Tensor, alive: Sequence[int]) -> list[float]:
        return self.optimum.errors(x, alive)

    def success(self, x: Tensor) -> None:
        """Return None: there are no samples to attack."""
        return

    def _at(self, rows: Tensor) -> Rows:
        """Return the places of the shards of `rows`."""
        return adjacent(torch.tensor([self.shards[row] for row in rows.tolist()]))

    def _slope(self, at: Rows, away: Tensor) -> Tensor:
        """A (x − b), a fresh tensor."""
        A = self._A[at]
        return A * away if A.dim() == 2 else torch.bmm(A, away.unsqueeze(-1)).squeeze(-1)


Problem = TorchTask | Bowls


def problem(
    manifest: Manifest,
    labels: Sequence[str],
    stack_from: int = STACK_FROM,
    attack: Attack | None = None,
    byzantine: NDArray[np.bool_] | None = None,
    *,
    own: bool = False,
) -> Problem:
    """Return the problem of a swarm; row i has shard i, over again where there are more rows than shards.

    `own`: each row's model is measured by held-out samples like its own data.
    `byzantine` (N,) bool are the rows that do what `attack` says: perhaps they learn from other data than they have.

    Raises ConfigError: the task, the model of `task.start` or the data cannot be had, or the attack needs other data.
    """
    made = task(manifest.task.kind, manifest.task.params())
    seed, parts = manifest.seed, manifest.partition.shards
    shards = [row % parts for row in range(len(labels))]
    begin = initial(made, manifest)
    if isinstance(made, Quadratic):
        data_of(made, Source(None, manifest.partition, 0, seed), "cpu", manifest.mix.own)
        if attack is not None and attack.targets == "data":
            raise ConfigError(f"attack.kind: poisons labels, which task={manifest.task.kind} has not; try `--set task.kind=digits`")
        made.check(Source(None, manifest.partition, 0, seed))
        return Bowls(made, labels, shards, seed, begin)
    apart = manifest.mix.own
    by_shard = {shard: data_of(made, Source(None, manifest.partition, shard, seed), "cpu", apart) for shard in sorted(set(shards))}
    data, hits, optimum = [by_shard[shard] for shard in shards], None, None
    if attack is not None and byzantine is not None:
        data, hits = poisoned(attack, byzantine, data), success(attack)
    if isinstance(made, Logistic):
        logistic = made
        optimum = Optimum(lambda alive: logistic.optimum([shards[row] for row in alive], seed))
    return TorchTask(
        made,
        data,
        labels,
        seed,
        manifest.task.batch_size,
        stack_from,
        hits,
        optimum,
        begin,
        own=own or bool(apart or manifest.mix.personal),
    )


def stacked(batches: Sequence[Any]) -> Any:
    """Equal trees of tensors -> one tree with a dimension in front. Raises TypeError: a leaf is no tensor; RuntimeError: shapes differ."""
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
    """Return where a model's parameters lie in the flat vector. Raises ConfigError: they cannot be one flat vector."""
    try:
        return layout(model)
    except ValueError as error:
        raise ConfigError(f"task.kind: {error}") from error
