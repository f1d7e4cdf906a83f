"""Local steps of many nodes at once, by the optimisers that nodes use: they are elementwise, so rows are as good as vectors.

A step that would leave a number that is not finite is undone for that row alone: its model is as before, its optimiser's memory empty.

Shapes: N rows, of which r take a step, d parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from starling.node.config.schema import OptimizerSection, PaceSection
from starling.node.engine.optimizers import Optimizer, Schedule, optimizer, ramp, schedule
from starling.node.simulate.matrix.place import place
from starling.node.simulate.matrix.problem import Problem

_STEPS = "steps"
_NEVER = -(2**31)


@dataclass(slots=True)
class LocalSteps:
    """Called by `starling.node.simulate.matrix.swarm.Swarm` for each local step of some rows.

    Args:
        problem: gives gradients.
        section: the optimiser and its schedule.
        pace: the run's length, and how fast a late joiner's rate climbs.
        like: (N, d) models.
        watched: somebody wants to see the gradients.
        running_mean: momentum begins with the first gradient, as if all before had been like it; sgd only.
    """

    problem: Problem
    section: OptimizerSection
    pace: PaceSection
    like: Tensor
    watched: bool = False
    running_mean: bool = False
    undone: int = 0
    gradients: Tensor = field(init=False)
    """(N, d) of each row's last local step, if they are watched."""
    _rates: Schedule = field(init=False)
    _memory: dict[str, Tensor] = field(init=False)
    _done: Tensor = field(init=False)
    _joined_at: Tensor = field(init=False)

    def __post_init__(self) -> None:
        rows = len(self.like)
        self.gradients = torch.zeros_like(self.like) if self.watched else self.like[:0]
        self._rates = schedule(self.section, self.pace.rounds)
        self._memory = optimizer(self.section, self.like).state_dict()
        if _STEPS in self._memory:
            self._memory[_STEPS] = torch.zeros((rows, 1), dtype=torch.int64)
        self._done = torch.zeros(rows, dtype=torch.int64)
        self._joined_at = torch.full((rows,), _NEVER, dtype=torch.int64)

    def __call__(self, rows: Tensor, round: int, step: int, x: Tensor, correct: Callable[[Tensor], Tensor]) -> Tensor:
        """One local step: x (r, d) of `rows` (r,) -> their new models."""
        gradients = self.problem.gradients(rows, self._done[rows], x)
        self._done[rows] += 1
        bad = _not_finite(gradients)
        if bad is not None:
            gradients[bad] = 0.0  # what the mixing algorithm keeps must stay finite
        if self.watched:
            self.gradients[rows] = gradients
        direction = correct(gradients)
        if self.running_mean:
            first = self._done[rows] == 1
            direction = torch.where(first[:, None], direction / (1.0 - self.section.momentum), direction)
        stepped = x.clone()
        for at, lr, part in self._groups(rows, round, x):
            if isinstance(at, slice):
                part.step(stepped[at], direction[at], lr)
            else:
                moved = stepped[at]
                part.step(moved, direction[at], lr)
                stepped[at] = moved
            self._keep(place(rows[at]), part)
        after = _not_finite(stepped)
        bad = after if bad is None else bad if after is None else bad | after
        if bad is not None:
            stepped[bad] = x[bad]
            self._forget(rows[bad])
            self.undone += int(bad.sum())
        return stepped

    def losses(self, rows: Tensor, models: Tensor) -> Tensor:
        """Models (r, m, d) -> (r, m): each one's loss on what its row has just learned from."""
        return self.problem.losses(rows, (self._done[rows] - 1).clamp_min(0), models)

    def joined(self, row: int, round: int) -> None:
        """A node came with another's model: its memory is empty, and its rate climbs from here."""
        self._joined_at[row] = round
        self._forget(torch.tensor([row]))

    def _groups(self, rows: Tensor, round: int, x: Tensor) -> Iterator[tuple[slice | Tensor, float, Optimizer]]:
        """Rows that go at one rate and have an optimiser of one age: where in `rows` they are, the rate, their optimiser."""
        age = (round - self._joined_at[rows]).clamp(max=self.pace.ramp_rounds)
        steps = self._memory[_STEPS][rows, 0] if _STEPS in self._memory else torch.zeros_like(age)
        for since, count in sorted(set(zip(age.tolist(), steps.tolist(), strict=True))):
            at = place(((age == since) & (steps == count)).nonzero().view(-1))
            part = optimizer(self.section, x[:0])
            own = place(rows[at])
            shared = {name: tensor[own] for name, tensor in self._memory.items() if name != _STEPS}
            if _STEPS in self._memory:
                shared[_STEPS] = torch.tensor([count])
            part.share(shared)
            yield at, self._rates.at(round) * ramp(since, self.pace.ramp_rounds), part

    def _keep(self, own: slice | Tensor, part: Optimizer) -> None:
        """A slice is shared already, but for the count of steps."""
        for name, tensor in part.state_dict().items():
            if name == _STEPS or not isinstance(own, slice):
                self._memory[name][own] = tensor

    def _forget(self, rows: Tensor) -> None:
        for tensor in self._memory.values():
            tensor[rows] = 0


def _not_finite(x: Tensor) -> Tensor | None:
    """(r,) bool of the rows (r, d) that hold a number that is not finite; None, the usual case, costs one pass."""
    if bool(torch.isfinite(x.sum())):
        return None
    bad = ~torch.isfinite(x).all(dim=1)
    return bad if bool(bad.any()) else None
