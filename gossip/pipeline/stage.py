"""One step of a crew on one of its stages: a state machine without I/O.

    arrived F i   at most so many ahead as the stage before may have under way; used in the order of micro-batches
    arrived B i   likewise, of what was sent forward
    computed      a forward goes to the next stage, or at the last stage turns round; a backward goes to the stage before
    all computed  this stage's part of the gradient is told to all others; who has those of all stages applies the step

A frame may be lost: a result is kept until what follows from it has arrived, and is sent again to a neighbour that asks. The payloads of at
most `ahead` forwards of this stage and as many backwards as the stage before may be ahead are kept so, encoded.

Tasks are done in the order of `starling.gossip.pipeline.schedule`, one at a time, so that gradients add up as on one machine, bit for bit.
Nothing is applied before all stages have told their parts; a step that is given up has changed nothing, and is done again from its begin.

Shapes: N stages, m micro-batches.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from starling.gossip.pipeline.schedule import Way, ahead, order, position, task


@dataclass(frozen=True, slots=True)
class Part:
    """A stage's report to all others at the end of a step.

    Args:
        squares: sum of the squares of its gradient, finite and >= 0.
        loss: of the step, of the last stage; 0 of others. Of an evaluation the sum.
        value: sum of the metric, in an evaluation.
        samples: evaluated, likewise.
        fine: all its numbers are finite; else no stage applies the step.
    """

    squares: float
    loss: float = 0.0
    value: float = 0.0
    samples: int = 0
    fine: bool = True


@dataclass(frozen=True, slots=True)
class Compute:
    """Do a task of this stage; `payload` is the neighboring stage's message, b"" without one."""

    way: Way
    micro: int
    payload: bytes
    labels: bytes = b""


@dataclass(frozen=True, slots=True)
class Pass:
    """Send the result of a task to stage `to`."""

    to: int
    way: Way
    micro: int
    payload: bytes
    labels: bytes = b""


@dataclass(frozen=True, slots=True)
class Tell:
    """All tasks are done: compute this stage's part of the step and send it to all others."""


@dataclass(frozen=True, slots=True)
class Apply:
    """All parts have arrived, in the order of stages."""

    parts: tuple[Part, ...]


Command = Compute | Pass | Tell | Apply


@dataclass(slots=True)
class Step:
    """One step of a stage, or an evaluation, whose backwards are empty: they keep the stages before from running ahead.

    `warm_up` as in the schedule.

    Errors are ValueError with a snake_case reason: the sender broke a rule and nothing has changed.
    """

    stage: int
    stages: int
    micro_batches: int
    warm_up: int = 0
    _tasks: deque[tuple[Way, int]] = field(init=False)
    _inputs: dict[Way, dict[int, tuple[bytes, bytes]]] = field(init=False)  # arrived and not used yet, by micro-batch
    _used: dict[Way, int] = field(init=False)  # number of results used in each direction
    _passed: dict[Way, int] = field(init=False)  # likewise, sent
    sent: dict[tuple[Way, int], Pass] = field(default_factory=dict)  # our results that may have been lost
    _asked: Counter[tuple[Way, int]] = field(default_factory=Counter)  # how often a result was asked for, less those that came twice
    _busy: tuple[Way, int] | None = None  # the task under way
    _parts: dict[int, Part] = field(default_factory=dict)
    _told: bool = False
    applied: bool = False

    def __post_init__(self) -> None:
        self._tasks = deque(order(self._kept(self.stage), self.micro_batches))
        self._inputs = {"F": {}, "B": {}}
        self._used, self._passed = {"F": 0, "B": 0}, {"F": 0, "B": 0}

    def _kept(self, stage: int) -> int:
        """Return how many micro-batches a stage may be ahead."""
        return ahead(stage, self.stages, self.micro_batches, self.warm_up)

    @property
    def held(self) -> int:
        """Micro-batches whose activations are kept here now."""
        left = sum(way == "B" for way, _ in self._tasks) + (self._busy is not None and self._busy[0] == "B")
        computed = self.micro_batches - sum(way == "F" for way, _ in self._tasks)
        return computed - (self.micro_batches - left)

    def begin(self) -> list[Command]:
        """The first task, where it needs nothing from others."""
        return self._next()

    def arrived(self, way: Way, micro: int, payload: bytes, labels: bytes = b"") -> list[Command]:
        """A neighbour's result: F of the stage before, B of the one after. Raises ValueError."""
        if (self.stage == 0) if way == "F" else self.stage == self.stages - 1:
            raise ValueError("no_such_neighbour")
        if not 0 <= micro < self.micro_batches:
            raise ValueError("no_such_micro_batch")
        if micro < self._used[way] or micro in self._inputs[way]:
            if not self._asked[way, micro]:
                raise ValueError("micro_batch_twice")
            self._asked[way, micro] -= 1
            return []
        before = self._kept(self.stage - 1)
        if way == "F" and micro >= self._passed["B"] + before:
            raise ValueError("micro_batch_too_early")
        if way == "B" and micro >= self._passed["F"]:
            raise ValueError("micro_batch_never_sent")
        self._inputs[way][micro] = (payload, labels)
        known: tuple[Way, int] = ("F", micro) if way == "B" else ("B", micro - before)  # it follows from that result and those before it
        self.sent = {key: sent for key, sent in self.sent.items() if key[0] != known[0] or key[1] > known[1]}
        return self._next()

    def computed(self, payload: bytes, labels: bytes = b"") -> list[Command]:
        """The result of the task under way; at the last stage a forward has none."""
        assert self._busy is not None
        (way, micro), self._busy = self._busy, None
        to = self.stage + (1 if way == "F" else -1)
        commands: list[Command] = []
        if 0 <= to < self.stages:
            self.sent[way, micro] = Pass(to, way, micro, payload, labels)
            commands.append(self.sent[way, micro])
        elif way == "F":
            self._inputs["B"][micro] = (b"", b"")
        self._passed[way] += 1
        return commands + self._next()

    def part(self, stage: int, part: Part) -> list[Command]:
        """Store a stage's part, also ours. Raises ValueError: it differs from an earlier one, or has non-finite numbers."""
        if self._parts.get(stage) == part:
            return []  # sent again, in case it was lost
        if not 0 <= stage < self.stages or stage in self._parts:
            raise ValueError("part_twice")
        if not (part.squares >= 0.0 and all(map(math.isfinite, (part.squares, part.loss, part.value)))):
            raise ValueError("part_not_finite")
        self._parts[stage] = part
        if len(self._parts) < self.stages:
            return []
        self.applied = True
        return [Apply(tuple(self._parts[each] for each in range(self.stages)))]

    @property
    def done(self) -> int:
        """Return how much of what this stage needs in the step is there: tasks that are done, then parts in the order of stages."""
        tasks = 2 * self.micro_batches - len(self._tasks) - (self._busy is not None)
        return tasks + next((stage for stage in range(self.stages) if stage not in self._parts), self.stages) * self._told

    @property
    def lacks(self) -> tuple[Way, int] | None:
        """Return the result of a neighbour that the next task needs and that has not arrived; None: there is no such one."""
        if self._busy is not None or not self._tasks:
            return None
        way, micro = self._tasks[0]
        return None if micro in self._inputs[way] or (way == "F" and self.stage == 0) else (way, micro)

    def ask(self) -> None:
        """Record that the lacking result is asked for, so that it may come twice."""
        assert self.lacks is not None
        self._asked[self.lacks] += 1

    def task_of(self, stage: int, done: int) -> tuple[Way, int]:
        """Return the task that a stage does after 0 <= `done` < 2m others."""
        return task(self._kept(stage), self.micro_batches, done)

    def wanted(self, stage: int, done: int) -> Pass | None:
        """Return what a stage that has done so many tasks lacks, if it is a result of this one that may have been lost."""
        if not 0 <= done < 2 * self.micro_batches:
            return None
        sent = self.sent.get(self.task_of(stage, done))
        return sent if sent is not None and sent.to == stage else None

    def needs(self, stage: int) -> int | None:
        """Return how many tasks a stage does before that whose result is awaited of it, for its part all but one; None: nothing is."""
        if self.waits and not self.heard(stage):
            return 2 * self.micro_batches - 1
        if self.lacks is None or stage != self.stage + (-1 if self.lacks[0] == "F" else 1):
            return None
        return position(self._kept(stage), self.micro_batches, *self.lacks)

    def gave(self, stage: int, done: int) -> bool:
        """Return whether what a stage lacks that has so much of the step has been sent, if it is to come from here."""
        if done >= 2 * self.micro_batches:
            return self._told
        way, micro = self.task_of(stage, done)
        return micro < self._passed[way]

    @property
    def waits(self) -> bool:
        """Return whether only others' parts are missing."""
        return self._told and not self.applied

    def heard(self, stage: int) -> bool:
        """Return whether a stage's part has arrived."""
        return stage in self._parts

    def _next(self) -> list[Command]:
        if self._busy is not None:
            return []
        if not self._tasks:
            told, self._told = self._told, True
            return [] if told else [Tell()]
        way, micro = self._tasks[0]
        if way == "F" and self.stage == 0:
            payload, labels = b"", b""
        elif micro in self._inputs[way]:
            payload, labels = self._inputs[way].pop(micro)
        else:
            return []
        self._used[way] += 1
        self._busy = self._tasks.popleft()
        return [Compute(way, micro, payload, labels)]


def fine(parts: Sequence[Part]) -> bool:
    """Return whether a step may be applied: the numbers of all stages are finite."""
    return all(part.fine for part in parts)


def shortened(parts: Sequence[Part], clip_norm: float | None) -> float:
    """Factor in (0, 1] of all stages' gradients, so that the whole one is at most `clip_norm` long."""
    norm = math.sqrt(sum(part.squares for part in parts))
    return 1.0 if clip_norm is None or norm <= clip_norm else clip_norm / norm
