"""Figures of a swarm at one moment: the same for both engines.

Shapes: n living nodes, d parameters.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starling.node.simulate.matrix.problem import Problem
from starling.node.simulate.results import Outcome, Refusal, Row, reached

Seen = Callable[[int, Tensor], None]
"""Called at each evaluation with the rounds done and the honest models (n, d), which must not be changed or stored."""

NOT_FINITE = "not_finite"  # text of a ValueError about non-finite numbers, as in the core


@dataclass(slots=True)
class Measure:
    """Measurements of one run."""

    problem: Problem | None  # computes the metric; None without a model: then the metric is Ξ² relative to its first value
    sample: int  # nodes measured where measuring is not cheap, evenly spread; 0: all
    seen: Seen | None = None
    rows: list[Row] = field(default_factory=list)
    _first: float = 0.0

    @property
    def metric(self) -> str:
        return "consensus_error" if self.problem is None else self.problem.metric

    def add(self, round: int, x: Tensor, alive: Sequence[int], *, seconds: float, sent_bytes: int, exchanges: int, nodes: int) -> None:
        """Add an evaluation of the models x (n, d) of the honest rows `alive`, ascending, after `round` rounds.

        `sent_bytes` and `exchanges`, counted at each end, are sums so far over the `nodes` that ever were.

        Raises ValueError: "not_finite": the swarm has diverged; there is no row.
        """
        distance = consensus_distance(x.double())
        loss = success = None
        if self.problem is None:
            self._first = self._first or distance
            mean_model = (distance / self._first) ** 2 if self._first else 0.0
            values = [mean_model]
        else:
            mean_model, loss = self.problem.score(x.mean(0), alive)
            everyone = self.problem.cheap or not 0 < self.sample < len(alive)
            sampled = x if everyone else x[torch.arange(self.sample) * len(alive) // self.sample]
            values, success = self.problem.values(sampled, alive), self.problem.success(sampled)
        row = Row(
            round=round,
            seconds=seconds,
            bytes_per_node=sent_bytes / nodes,
            exchanges_per_node=exchanges / nodes,
            alive=len(alive),
            loss=loss,
            mean_model=mean_model,
            mean=sum(values) / len(values),
            min=min(values),
            max=max(values),
            consensus_distance=distance,
            attack_success=success,
        )
        if not all(map(math.isfinite, (row.loss or 0.0, mean_model, row.min, row.mean, row.max, distance))):
            raise ValueError(NOT_FINITE)
        self.rows.append(row)
        if self.seen is not None:
            self.seen(round, x)

    def outcome(
        self,
        *,
        parameters: int,
        byzantine: NDArray[np.bool_],
        counts: dict[str, int],
        diverged: int | None,
        undone: int,
        target: float,
        wall_s: float,
        refusals: Sequence[Refusal] = (),
    ) -> Outcome:
        """Return the outcome of the run; arguments as of `Outcome`, `byzantine` (N,)."""
        higher = self.problem is not None and self.problem.higher_is_better
        return Outcome(
            metric=self.metric,
            higher_is_better=higher,
            parameters=parameters,
            rows=tuple(self.rows),
            counts=counts,
            undone=undone,
            diverged=diverged,
            bad=tuple(np.flatnonzero(byzantine).tolist()),
            target=reached(self.rows, target, higher_is_better=higher),
            wall_s=wall_s,
            refusals=tuple(refusals),
        )

    def line(self) -> str:
        """Describe the latest evaluation in a few words."""
        row = self.rows[-1]
        return f"{self.metric.replace('_', ' ')} {row.mean:.4g}, {row.alive} nodes"


def consensus_distance(x: Tensor) -> float:
    """Return Xi of models (n, d): Xi² = (1/n) Σ ‖x_i − x̄‖²."""
    return float(torch.sqrt((x - x.mean(0)).double().square().sum(1).mean()))
