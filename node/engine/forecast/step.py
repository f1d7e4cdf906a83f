"""Forecast the seconds of a task's local step on this machine, from its operations one by one, before a step is done.

The loss and its gradient are run on fake tensors (`operations`). Each different operation is then timed by itself on numbers of its shapes
(`timing`), and what follows a gradient (correction, optimiser) as a whole, alternating with them. What is around kernels (Python,
autograd, a
trainer's bookkeeping) is measured with a tiny model. The drawing of a batch is timed as a whole.

Of the CPU, in float32, without `numerics`, `privacy` and crews. Steps of less than a millisecond are mostly what is around them, and take
up to half as long again. Predictions from single operations: Yu et al. 2021 (arXiv:2102.00527).
"""

from __future__ import annotations

import time
from os import urandom
from typing import Any

import msgspec
import torch
from msgspec import structs
from torch import Tensor, nn

from starling.gossip.rng import generator
from starling.gossip.vector import layout
from starling.node.catalogues import task, trainer
from starling.node.config import toml
from starling.node.config.schema import CrewSection, Manifest, OptimizerSection, PartitionSection, TaskSection
from starling.node.config.weight import weight
from starling.node.engine.forecast.operations import Operation, operations
from starling.node.engine.forecast.timing import REPEATS, Clock, apart, kernels, taken
from starling.node.engine.local.correction import correction_of
from starling.node.engine.local.guard import Guard
from starling.node.engine.local.local_model import LocalModel
from starling.node.engine.local.local_step import Descent, GradientStep
from starling.node.engine.local.rates import Rates
from starling.node.engine.local.replicas import replica_of
from starling.node.engine.optimizers import optimizer_of
from starling.node.engine.privacy.csprng import Csprng
from starling.node.engine.vectors import GradientWindow
from starling.node.rpc import calls
from starling.node.tasks.api import Data, Task

LINKS = 12  # layers of a chain whose time is only overhead
NODE = "forecast"  # its label


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one local step."""

    parameters: int
    operations: int
    """Operations of the loss and its gradient."""
    batch_s: float
    """Seconds to draw a batch."""
    kernels_s: float
    """Seconds of the operations alone."""
    update_s: float
    """Seconds of correction, checks and the optimiser's step."""
    around_s: float = 0.0
    """Seconds of overhead of operations, and of a step."""

    @property
    def step_s(self) -> float:
        """Return the seconds of the whole step."""
        return self.batch_s + self.kernels_s + self.update_s + self.around_s


def forecast(manifest: Manifest, made: Task, data: Data, clock: Clock = time.perf_counter) -> Forecast:
    """Return the forecast of a step on a batch of `task.batch_size`.

    `clock`: of seconds; `time.thread_time` does not count what other programs take.

    Raises ConfigError: the loss cannot be followed, or a manifest that does not fit the model.
    """
    with torch.random.fork_rng(devices=[]):
        known, each_s = _parts(manifest, made, data, clock), overhead(clock)
        around_s = each_s * known.operations + around_a_step(manifest, clock, each_s)
    return structs.replace(known, around_s=around_s)


def _parts(manifest: Manifest, made: Task, data: Data, clock: Clock) -> Forecast:
    """Return a forecast without overheads of operations and steps."""

    def batch() -> Any:
        return data.batch(manifest.task.batch_size, generator(manifest.seed, "forecast"))

    update = Operation(_update(manifest, made, data), ((0,), {}), 1)
    model = made.model(generator(manifest.seed, "model"))
    dim, computed = layout(model).dim, operations(made.loss, model, batch())
    *kernels_s, update_s = apart([*computed, update], clock)
    return Forecast(
        parameters=dim,
        operations=sum(each.count for each in computed),
        batch_s=taken(batch, clock, REPEATS),
        kernels_s=sum(kernels_s),
        update_s=update_s,
    )


class _Constant:
    """A gradient source that computes nothing."""

    def __call__(self, step: int, round: int, into: Tensor) -> tuple[float, bool]:
        """Write a constant gradient."""
        into.fill_(0.1)
        return 0.0, True

    def forget(self) -> None: ...


def _update(manifest: Manifest, made: Task, data: Data) -> GradientStep:
    """Return a local step without the computation of its gradient."""
    model = LocalModel(manifest, NODE, made, data, lambda: made.model(generator(manifest.seed, "model")), "cpu")
    model.bind()
    replica, counts = replica_of(_open_request(manifest), model), weight(manifest, data.samples)
    descent = Descent(lambda: optimizer_of(manifest, model.x, model.module), counts, lambda _step: None)
    correction = correction_of(manifest, replica, counts)
    return GradientStep(model, _Constant(), correction, descent, Guard(model), Rates(manifest))


def _open_request(manifest: Manifest) -> calls.Open:
    return calls.Open(manifest, "", 0, "cpu", torch.get_num_threads(), "", NODE)


def overhead(clock: Clock) -> float:
    """Return the seconds of overhead of an operation: of a chain of layers of four numbers, less its kernels."""
    chain = nn.Sequential(*(layer for _ in range(LINKS) for layer in (nn.Linear(4, 4), nn.Tanh())))
    batch = torch.ones(1, 4)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), torch.zeros(1, dtype=torch.int64))

    def step() -> None:
        for each in chain.parameters():
            if each.grad is not None:
                each.grad.zero_()
        loss(chain, batch).backward()  # type: ignore[no-untyped-call]

    whole = taken(step, clock, 60)
    computed = operations(loss, chain, batch)
    return max(0.0, whole - kernels(computed, clock, repeats=60)) / sum(each.count for each in computed)


def around_a_step(manifest: Manifest, clock: Clock, each_s: float) -> float:
    """Return the seconds of a step that depend neither on the model nor on the batch; `each_s`: overhead of an operation.

    They are those of a trainer's step on the smallest model, less its own forecast.
    """
    plain = structs.replace(
        manifest,
        task=TaskSection(),
        optimizer=OptimizerSection(),
        crew=CrewSection(),
        partition=PartitionSection(),
        mix=structs.replace(manifest.mix, personal=(), turns=(), own=0.0),
    )
    tiny = toml.apply_set(plain, ("task.kind=digits", "task.hidden=1", "task.batch_size=1"))
    open_request = _open_request(tiny)
    tried = trainer(open_request)(open_request, Csprng(urandom), GradientWindow())
    whole = taken(lambda: tried.step(0), clock, 60)
    made = task(tiny.task.kind, tiny.task.params())
    known = _parts(tiny, made, tried.model.data, clock)
    return max(0.0, whole - known.step_s - each_s * known.operations)
