"""What all nodes of a swarm learn, at once: gradients and figures of merit for many models side by side.

Every batch is drawn as a whole node draws it, from `generator(seed, "batch", node label, local step)`, so both walk one trajectory.
The bowls have formulas (`node.simulate.matrix.convex`); any other task is differentiated (`node.simulate.matrix.torch_task`).

Shapes: N rows, of which r or m are asked for, d parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.gossip.vector import Layout
from starling.node.config.schema import Manifest
from starling.node.simulate.matrix.attackers import poisoned, success
from starling.node.simulate.matrix.convex import Bowls, Convex, Optimum
from starling.node.simulate.matrix.torch_task import STACK_FROM, Learned
from starling.node.tasks.api import Data, Source, Task
from starling.node.tasks.catalogue import task
from starling.node.tasks.diagonal import Diagonal
from starling.node.tasks.logistic import Logistic
from starling.node.tasks.quadratic import DTYPES, Quadratic
from starling.robust.attacks.api import Attack


class Problem(Protocol):
    """All nodes' learning."""

    @property
    def start(self) -> Tensor:
        """(d,) where every node begins."""
        ...

    @property
    def layout(self) -> Layout:
        """Of a model."""
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

    def losses(self, rows: Tensor, done: Tensor, x: Tensor) -> Tensor:
        """What models are worth to a row: (r, m), each model's loss on the batch of one of the row's local steps.

        Args:
            rows: (r,) int64, ascending.
            done: (r,) int64, local steps before that one.
            x: (r, m, d) models; not modified.
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

    def success(self, x: Tensor) -> float | None:
        """How often models x (m, d) do what an attack wants of them, in [0, 1]; None where it wants nothing that can be counted."""
        ...


Liars = tuple[Attack, NDArray[np.bool_]]
"""What bad rows do, and which (N,) they are."""


def problem(
    manifest: Manifest, labels: Sequence[str], stack_from: int = STACK_FROM, liars: Liars | None = None
) -> Problem:
    """The problem of a swarm.

    Args:
        manifest: task, partition and seed; row i has shard i, over again where there are more rows than shards.
        labels: of each row.
        stack_from: see `Learned`.
        liars: some of them may learn from other data than they have.

    Raises:
        ConfigError: the task or its data cannot be had, or an attack needs other data.
    """
    made = task(manifest.task.kind, manifest.task.params)
    seed, parts = manifest.seed, manifest.partition.shards
    shards = [row % parts for row in range(len(labels))]
    poisons = liars is not None and liars[0].targets == "data"
    match made:
        case Quadratic() | Diagonal() if poisons:
            raise ConfigError(
                f"attack.kind: poisons labels, which task={manifest.task.kind} has not; try `--set task.kind=digits`"
            )
        case Quadratic() | Diagonal():
            _check_parts(made.nodes, parts)
            return _bowls(made, seed, shards, labels)
        case _:
            data = _data(made, manifest, shards)
            if liars is not None:
                data = poisoned(*liars, data)
            hits = None if liars is None else success(liars[0])
            learned = Learned(made, data, labels, seed, manifest.task.batch_size, stack_from, hits)
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


def _check_parts(nodes: int, parts: int) -> None:
    if nodes != parts:
        raise ConfigError(f"partition.shards: must be task.params.nodes = {nodes}, got {parts}")
