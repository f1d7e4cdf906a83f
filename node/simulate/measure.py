"""What is known of a swarm at one moment: the same figures for both engines.

Shapes: n living nodes, d parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from starling.gossip.reference import consensus_distance
from starling.node.simulate.matrix.problem import Problem
from starling.node.simulate.results import Row

NOT_FINITE = "not_finite"
"""What a ValueError says where numbers have left the finite ones; the core says the same."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What it took so far: virtual time, and per node that ever was the bytes sent and exchanges committed."""

    seconds: float
    bytes_per_node: float
    exchanges_per_node: float


@dataclass(slots=True)
class Measure:
    """Rows of one run.

    Args:
        problem: knows the metric; None without a model: then the metric is Ξ² over what it was at first.
        sample: nodes measured where measuring is not cheap, evenly spread; 0: all.
    """

    problem: Problem | None
    sample: int
    rows: list[Row] = field(default_factory=list)
    _first: float = 0.0

    @property
    def metric(self) -> str:
        """Its name."""
        return "consensus_error" if self.problem is None else self.problem.metric

    @property
    def higher_is_better(self) -> bool:
        """Which way it improves."""
        return self.problem is not None and self.problem.higher_is_better

    def add(self, round: int, cost: Cost, x: Tensor, alive: Sequence[int]) -> None:
        """One evaluation after `round` rounds of the models x (n, d) of the rows `alive` (n), ascending; of the honest alone.

        Raises:
            ValueError: "not_finite": the swarm has diverged; there is no row.
        """
        apart = consensus_distance(x.double())
        if self.problem is None:
            self._first = self._first or apart
            error = (apart / self._first) ** 2 if self._first else 0.0
            row = _row(round, cost, len(alive), apart, error, None, [error])
        else:
            value, loss = self.problem.score(x.mean(0), alive)
            sampled = x[self._sampled(len(alive))]
            values = self.problem.values(sampled, alive)
            row = _row(round, cost, len(alive), apart, value, loss, values, self.problem.success(sampled))
        if not all(
            math.isfinite(figure) for figure in (row.loss or 0.0, row.mean_model, row.min, row.mean, row.max, apart)
        ):
            raise ValueError(NOT_FINITE)
        self.rows.append(row)

    def line(self) -> str:
        """The latest in a few words."""
        row = self.rows[-1]
        return f"{self.metric.replace('_', ' ')} {row.mean:.4g}, {row.alive} nodes"

    def _sampled(self, count: int) -> slice | Tensor:
        assert self.problem is not None
        if self.problem.cheap or not 0 < self.sample < count:
            return slice(None)
        return torch.arange(self.sample) * count // self.sample


def _row(
    round: int, cost: Cost, alive: int, apart: float, mean_model: float, loss: float | None, values: Sequence[float],
    attack_success: float | None = None,
) -> Row:  # fmt: skip
    return Row(
        round=round, seconds=cost.seconds, bytes_per_node=cost.bytes_per_node, exchanges_per_node=cost.exchanges_per_node,
        alive=alive, loss=loss, mean_model=mean_model, mean=sum(values) / len(values), min=min(values), max=max(values),
        consensus_distance=apart, attack_success=attack_success,
    )  # fmt: skip
