"""Local steps of many nodes at once, by the optimisers that nodes use. Most work coordinate by coordinate, so rows can be stacked; those
that see shapes, or the vector as a whole, step each row by itself.

A step that would leave a number that is not finite is undone for that row alone: its model is as before, its optimiser's memory empty.

Shapes: N rows, of which r take a step, d parameters.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from starling.gossip.mix.seeds import Seeds, slope
from starling.gossip.vector import finite
from starling.node.config.schema import OptimizerSection, PaceSection
from starling.node.engine import gradient_point
from starling.node.engine.corrections import Corrections
from starling.node.engine.flat_optimizer import Optimizer
from starling.node.engine.optimizers import by_rows, optimizer
from starling.node.engine.schedules import Schedule, ramp, schedule
from starling.node.simulate.matrix.problem import Problem
from starling.node.simulate.matrix.table import Rows, adjacent

_NEVER = -(2**31)


@dataclass(slots=True)
class LocalSteps:
    """Called by `starling.node.simulate.matrix.swarm.Swarm` for each local step of some rows."""

    problem: Problem
    section: OptimizerSection
    pace: PaceSection  # the run's length, and how fast a late joiner's rate climbs
    like: Tensor  # (N, d) models
    corrections: Corrections  # where corrections and `weights` meet the optimiser
    weights: Sequence[float] = ()  # weights of all rows; none: 1 each
    watched: bool = False  # gradients are stored for attackers to read
    running_mean: bool = False  # momentum begins with the first gradient, as if all before had been like it; sgd only
    seeds: Seeds | None = None  # steps are along drawn directions, without gradients
    undone: int = 0
    gradients: Tensor = field(init=False)  # (N, d) of each row's last local step, if they are watched
    _rates: Schedule = field(init=False)
    _optimizer: Optimizer = field(init=False)
    _by_rows: bool = field(init=False)
    _memory: dict[str, Tensor] = field(init=False, default_factory=dict)  # of stacked rows
    _own: dict[int, dict[str, Tensor]] = field(init=False, default_factory=dict)  # of each other row
    _raw: Tensor = field(init=False)  # (N, d) the last gradients, where steps are optimistic; NaN: none
    _scalars: frozenset[str] = frozenset()
    _weights: Tensor | None = field(init=False)  # (N, 1)
    _steps: Tensor = field(init=False)  # (N,) since the optimiser's memory was empty
    done: Tensor = field(init=False)  # (N,)
    _lives: Tensor = field(init=False)  # (N,) how often the optimiser's memory was emptied
    _joined_at: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.gradients = torch.zeros_like(self.like) if self.watched else self.like[:0]
        optimistic = self.section.gradient == "optimistic"
        self._raw = torch.full_like(self.like, torch.nan) if optimistic else self.like[:0]
        self._rates = schedule(self.section, self.pace.rounds)
        self._by_rows = by_rows(self.section)
        self._optimizer = optimizer(
            self.section,
            self.like[:0] if self._by_rows else self.like[0],
            weighs_updates=self.corrections.weighs_updates,
            model=self.problem.model,
        )
        equal = all(weight == 1.0 for weight in self.weights)
        self._weights = None if equal else self.like.new_tensor(self.weights)[:, None]
        self._steps, self.done, self._lives = torch.zeros((3, len(self.like)), dtype=torch.int64)
        self._joined_at = torch.full((len(self.like),), _NEVER, dtype=torch.int64)

    def __call__(self, rows: Tensor, round: int, step: int, x: Tensor, correct: Callable[[Tensor], Tensor]) -> Tensor:
        """One local step: x (r, d) of `rows` (r,) -> their new models."""
        if self.seeds is not None:
            return self._by_seeds(self.seeds, rows, round, step, x, correct)
        gradients = self.problem.gradients(rows, self.done[rows], x)
        bad = _not_finite(gradients)
        gradients[bad] = 0.0  # what the mixing algorithm keeps must stay finite
        if self.watched:
            self.gradients[rows] = gradients
        gradients = self._made(gradients, rows, round, x, correct)
        gradients[_not_finite(gradients)] = 0.0
        weights = 1.0 if self._weights is None else self._weights[rows]
        direction, shift = self.corrections.corrected(gradients, correct, weights)
        if self.running_mean:
            first = self.done[rows] == 1
            direction = torch.where(first[:, None], direction / (1.0 - self.section.momentum), direction)
        stepped = x.clone()
        for at, lr, count, weight in self._groups(rows, round):
            moved, moves = stepped[at], None if shift is None else shift[at]
            self._step(adjacent(rows[at]), moved, direction[at], moves, lr, count, weight)
            if not isinstance(at, slice):
                stepped[at] = moved
        bad |= _not_finite(stepped)
        stepped[bad] = x[bad]
        self._steps[rows[bad]] = 0
        self._lives[rows[bad]] += 1
        self.undone += int(bad.sum())
        return stepped

    def _made(self, gradients: Tensor, rows: Tensor, round: int, x: Tensor, correct: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the directions of steps before corrections, from the first gradients (r, d) of `rows` at x; uses up their batches."""
        section = self.section
        if section.gradient == "optimistic":
            gradients, self._raw[rows] = gradient_point.optimistic(gradients, self._raw[rows]), gradients
        elif gradient_point.has_second_gradient(section):
            further = gradient_point.point(section, x, gradients, correct, self._ramped(rows, round, x))
            gradients = self.problem.gradients(rows, self.done[rows], further)
        self.done[rows] += 1
        return gradients

    def _ramped(self, rows: Tensor, round: int, x: Tensor) -> Tensor:
        """Return (r, 1), the rates of `rows`, of the dtype of x."""
        age = (round - self._joined_at[rows]).clamp(max=self.pace.ramp_rounds).tolist()
        return x.new_tensor([self._rates.at(round) * ramp(since, self.pace.ramp_rounds) for since in age])[:, None]

    def _by_seeds(self, seeds: Seeds, rows: Tensor, round: int, step: int, x: Tensor, correct: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the directions of steps along seeded random directions, as `Learner` does for the mixing algorithm `seeds`."""
        directions = torch.stack([seeds.direction(self.problem.labels[row], round, step, x) for row in rows.tolist()])
        both = torch.stack((x + seeds.epsilon * directions, x - seeds.epsilon * directions), 1)
        scalars = self._ramped(rows, round, x) * slope(self.problem.losses(rows, self.done[rows], both), seeds.epsilon)
        self.done[rows] += 1
        bad = ~torch.isfinite(scalars)
        self.undone += int(bad.sum())
        return x - correct(scalars.masked_fill(bad, 0.0)) * directions

    def losses(self, rows: Tensor, models: Tensor) -> Tensor:
        """Models (r, m, d) -> (r, m): each one's loss on what its row has just learned from."""
        return self.problem.losses(rows, (self.done[rows] - 1).clamp_min(0), models)

    def joined(self, row: int, round: int) -> None:
        """A node came with another's model: its memory is empty, and its rate climbs from here."""
        self._joined_at[row] = round
        if len(self._raw):
            self._raw[row] = torch.nan
        self._steps[row] = 0
        self._lives[row] += 1

    def life(self, row: int) -> tuple[int, int]:
        """Return how often a row's memory was emptied, and its number of local steps."""
        return int(self._lives[row]), int(self.done[row])

    def state_of(self, row: int) -> dict[str, Tensor]:
        """Return what a row's optimiser keeps, by torch's names, not copied; empty before its first step."""
        if not self._steps[row]:
            return {}
        if not self._by_rows:
            return self._own[row]
        return {name: tensor[row, 0] if name in self._scalars else tensor[row] for name, tensor in self._memory.items()}

    def set_age(self, row: int, age: int) -> None:
        """Let a row's state be of so many steps."""
        self._steps[row] = age
        for name, tensor in self.state_of(row).items():
            if name.rpartition(".")[2] == "step":
                tensor.fill_(age)

    def _groups(self, rows: Tensor, round: int) -> Iterator[tuple[Rows, float, int, float]]:
        """Rows with one rate, count of steps and weight of updates: where in `rows` they are, and these three."""
        age = (round - self._joined_at[rows]).clamp(max=self.pace.ramp_rounds)
        counts = self._steps[rows] if self._scalars else self._steps[rows].clamp(max=1)
        weights = torch.ones(len(rows), dtype=torch.float64)
        if self._optimizer.weighs_updates and self._weights is not None:
            weights = torch.tensor(self.weights, dtype=torch.float64)[rows]
        for since, count, weight in sorted(set(zip(age.tolist(), counts.tolist(), weights.tolist(), strict=True))):
            at = adjacent(((age == since) & (counts == count) & (weights == weight)).nonzero().view(-1))
            yield at, self._rates.at(round) * ramp(since, self.pace.ramp_rounds), count, weight

    def _step(self, own: Rows, x: Tensor, direction: Tensor, shift: Tensor | None, lr: float, count: int, weight: float) -> None:
        """A step of rows `own` that have done `count` with the state they have; x (r, d) is changed in place."""
        if not self._by_rows:
            for place, row in enumerate(torch.arange(len(self.like))[own].tolist()):
                self._optimizer.share(self._own[row] if count else {})
                self._optimizer.step(x[place], direction[place], lr, None if shift is None else shift[place], weight)
                self._own[row] = self._optimizer.state_dict()
            self._steps[own] += 1
            return
        part = self._optimizer if count else optimizer(self.section, x, weighs_updates=self._optimizer.weighs_updates)
        if count:
            part.share({name: tensor[own][0, 0].clone() if name in self._scalars else tensor[own] for name, tensor in self._memory.items()})
        part.step(x, direction, lr, shift, weight)
        for name, tensor in part.state_dict().items():
            if name not in self._memory:
                self._memory[name] = tensor.new_zeros(len(self.like), *(x.shape[1:] if tensor.dim() else (1,)))
                self._scalars |= frozenset() if tensor.dim() else {name}
            if not (count and tensor.dim() and isinstance(own, slice)):  # a slice shares memory already
                self._memory[name][own] = tensor
        self._steps[own] += 1


def _not_finite(x: Tensor) -> Tensor:
    """Return (r,) bool, the rows of x (r, d) that hold a number that is not finite; where there is none, the usual case, in one pass."""
    if finite(x):
        return torch.zeros(len(x), dtype=torch.bool)
    return ~torch.isfinite(x).all(dim=1)
