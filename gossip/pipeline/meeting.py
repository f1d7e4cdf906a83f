"""The state from which a crew continues: every stage reports its states, and all reach the same conclusion; pure.

A stage's state is named by the local steps that made it. What it has is the state it is in, and copies of earlier ones: two of its own,
and two of the stage behind it in the ring (0 is behind N − 1), in case that one's machine is lost. A stage on a new machine begins with
none, and is given the copy.

Shapes: N stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import ClassVar

KEPT = 2  # number of states that are kept per stage


@dataclass(frozen=True, slots=True)
class Has:
    """A stage's report.

    Args:
        step: local steps that made its state.
        left: local steps of the round still to do by its own count; 0: it rests.
        points: states it can go back to.
        copies: states that it keeps of the stage behind it.
        safe: the newest of its states that is kept elsewhere, and from there on counted by 1; 0: none.
        batches: of held-out data, told by stage 0.
    """

    step: int
    left: int
    points: tuple[int, ...] = ()
    copies: tuple[int, ...] = ()
    safe: int = 0
    batches: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """The common conclusion.

    Args:
        step: of the state that they begin from.
        back: they go back to it; else they are in it.
        until: steps at the end of the round's local steps.
        keep: every stage is to keep the state it begins in.
        batches: as told.
        torn: there is no state that all have, so that each goes on from its own; `step` is the lower median of theirs.
    """

    step: int
    back: bool
    until: int
    keep: bool
    batches: int = 0
    torn: bool = False
    stages: ClassVar[tuple[int, ...]] = ()  # that lack their state

    @property
    def rests(self) -> bool:
        """Return whether somebody has no steps to do."""
        return self.until <= self.step

    @property
    def steps(self) -> bool:
        """Return whether local steps follow."""
        return not self.rests


@dataclass(frozen=True, slots=True)
class Fetch:
    """Stages that must first be given a copy of their state after `step` local steps by the one that keeps it."""

    step: int
    stages: tuple[int, ...]
    rests: ClassVar[bool] = False
    steps: ClassVar[bool] = False


def agree(told: Sequence[Has], keep_after: int, local_steps: int) -> Start | Fetch:
    """Return the conclusion from the reports of all N >= 2 stages, in order.

    Args:
        told: the reports.
        keep_after: local steps between stored states, >= 1.
        local_steps: of a round, >= 1. No more follow than these and those since the oldest stored state, whatever a stage says.
    """
    until = 0 if any(has.left == 0 for has in told) else max(has.step + has.left for has in told)
    batches = told[0].batches

    def start(step: int, *, back: bool = False, keep: bool = False, torn: bool = False) -> Start:
        most = local_steps + KEPT * keep_after * back
        return Start(step, back, max(step, min(until, step + most)), keep, batches, torn)

    steps = {has.step for has in told}
    if len(steps) == 1:
        (step,) = steps
        return start(step, keep=_kept(told, step, keep_after))
    common = set.intersection(*({*has.points, *behind(told, stage).copies} for stage, has in enumerate(told)))
    if not common:
        return start(median_low(has.step for has in told), keep=True, torn=True)
    step = max(common)
    missing = tuple(stage for stage, has in enumerate(told) if step not in has.points)
    return Fetch(step, missing) if missing else start(step, back=True)


def _kept(told: Sequence[Has], step: int, keep_after: int) -> bool:
    """Return whether all keep the state that they are in: it is due, and the last is safe, or they have not kept the same."""
    newest = {max(has.points, default=-1) for has in told}
    last = max(newest)
    return len(newest) > 1 or last < 0 or (step >= last + keep_after and all(has.safe > last for has in told))


def behind(told: Sequence[Has], stage: int) -> Has:
    """Return the report of the stage that stores copies of `stage`: the previous one in the ring."""
    return told[stage - 1]
