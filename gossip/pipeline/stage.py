"""One step of a crew on one of its stages: a state machine without I/O.

    arrived F i   in the order of micro-batches, at most so many ahead as the stage before may have under way
    arrived B i   in the same order, of what was sent forward
    computed      a forward goes to the next stage, or at the last stage turns round; a backward goes to the stage before
    all computed  this stage's part of the gradient is told to all others; who has those of all stages applies the step

Tasks are done in the order of `starling.gossip.pipeline.schedule`, one at a time, so that gradients add up as on one machine, bit for bit.
Nothing is applied before all stages have told their parts; a step that is given up has changed nothing, and is done again from its begin.

Shapes: N stages, m micro-batches.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from starling.gossip.pipeline.schedule import Way, ahead, order


class Gap(Exception):
    """A frame was lost on the way: the step must be done again, and nobody is to blame."""


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
    _inputs: dict[Way, deque[tuple[bytes, bytes]]] = field(init=False)
    _arrived: dict[Way, int] = field(init=False)  # number of arrived frames in each direction
    _passed: dict[Way, int] = field(init=False)  # likewise, sent
    _busy: tuple[Way, int] | None = None  # the task under way
    _parts: dict[int, Part] = field(default_factory=dict)
    _told: bool = False
    applied: bool = False

    def __post_init__(self) -> None:
        kept = ahead(self.stage, self.stages, self.micro_batches, self.warm_up)
        self._tasks = deque(order(kept, self.micro_batches))
        self._inputs = {"F": deque(), "B": deque()}
        self._arrived, self._passed = {"F": 0, "B": 0}, {"F": 0, "B": 0}

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
        """A neighbour's result: F of the stage before, B of the one after. Raises ValueError, Gap."""
        if (self.stage == 0) if way == "F" else self.stage == self.stages - 1:
            raise ValueError("no_such_neighbour")
        if not 0 <= micro < self.micro_batches:
            raise ValueError("no_such_micro_batch")
        if micro < self._arrived[way]:
            raise ValueError("micro_batch_twice")
        if way == "F":
            before = ahead(self.stage - 1, self.stages, self.micro_batches, self.warm_up)
            if micro >= self._passed["B"] + before:
                raise ValueError("micro_batch_too_early")
        if way == "B" and micro >= self._passed["F"]:
            raise ValueError("micro_batch_never_sent")
        if micro > self._arrived[way]:
            raise Gap
        self._arrived[way] += 1
        self._inputs[way].append((payload, labels))
        return self._next()

    def computed(self, payload: bytes, labels: bytes = b"") -> list[Command]:
        """The result of the task under way; at the last stage a forward has none."""
        assert self._busy is not None
        (way, micro), self._busy = self._busy, None
        to = self.stage + (1 if way == "F" else -1)
        commands: list[Command] = []
        if 0 <= to < self.stages:
            commands.append(Pass(to, way, micro, payload, labels))
        elif way == "F":
            self._inputs["B"].append((b"", b""))
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
        elif self._inputs[way]:
            payload, labels = self._inputs[way].popleft()
        else:
            return []
        self._busy = self._tasks.popleft()
        return [Compute(way, micro, payload, labels)]


def fine(parts: Sequence[Part]) -> bool:
    """Return whether a step may be applied: the numbers of all stages are finite."""
    return all(part.fine for part in parts)


def shortened(parts: Sequence[Part], clip_norm: float | None) -> float:
    """Factor in (0, 1] of all stages' gradients, so that the whole one is at most `clip_norm` long."""
    norm = math.sqrt(sum(part.squares for part in parts))
    return 1.0 if clip_norm is None or norm <= clip_norm else clip_norm / norm
