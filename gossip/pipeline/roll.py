"""The meetings of a crew, and frames of steps that this stage has not begun; pure.

Meetings have increasing numbers. Every stage sends its Ready with the number to all others, and a stage that receives a later number joins
that meeting. Number 0 means no meeting: the sender of such a Ready is alive, but busy with something else. Whoever calls a meeting signs
its number (`call`), and all who come pass that on, so everybody knows who called it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import structs

from starling.gossip.limits import keep
from starling.gossip.pipeline.meeting import Has
from starling.gossip.pipeline.minutes import Concluded, minutes
from starling.gossip.wire.schema import Backward, Forward, Minutes, Ready, StepReport, Waits

MOST_SKIPPED = 1 << 20  # meetings
MOST_NAMES = 64  # of crews whose meetings go on where they ended, if the same peers are together again
MOST_STEPS_AHEAD = 4
StepFrame = Forward | Backward | StepReport


@dataclass(slots=True)
class Roll:
    """The reports of each stage at each meeting."""

    number: int = 0  # number of our last meeting
    called: int = 0  # number of the last meeting that any stage called
    call: Waits | None = None  # the caller's signed word for that number
    counted: int = 0  # the last one that was counted as an interruption
    own: Ready | None = None
    concluded: Concluded = field(default_factory=Concluded)
    _newest: dict[int, Ready] = field(default_factory=dict)  # by stage
    _crew: bytes = b""
    _numbers: dict[bytes, int] = field(default_factory=dict)  # of the last meeting, by crew: no number is signed twice

    def reset(self, crew: bytes) -> None:
        """Reset after the crew has changed: meetings are counted from 0, or from the last that this stage had with this one."""
        self.number = self._numbers.get(crew, 0)
        self._crew, self.called, self.counted, self.call, self.own, self._newest = crew, self.number, 0, None, None, {}
        self.concluded = Concluded()

    def open(self) -> int:
        """Begin the next meeting, or go to the one that was called -> its number."""
        self.number = max(self.number + 1, self.called)
        keep(self._numbers, self._crew, self.number, MOST_NAMES)
        return self.number

    def alive(self, step: int) -> Ready:
        """Return a report of no meeting: this stage, after so many local steps, is there."""
        return Ready(self._crew, 0, 0, step, 0, False, heard_at=self.concluded.turn, heard=self.concluded.heard)

    def said(self, stage: int, turn: int) -> Ready | None:
        """Return what a stage has said here at a meeting, one of the last; None: nothing."""
        if told := self.concluded.at(turn):
            return told[stage]
        ready = self._newest.get(stage)
        return ready if ready is not None and ready.turn == turn else None

    def minutes(self, turn: int, stages: int) -> Minutes:
        """Return what was heard at a meeting, one of the last."""
        return minutes(self._crew, turn, [self.said(stage, turn) for stage in range(stages)])

    def came(self, stage: int, ready: Ready) -> bool:
        """Record a stage's report; return whether it repeated itself and may lack ours."""
        before, answers = self._newest.get(stage), ready.answers
        ready = structs.replace(ready, answers=False)
        if before is None or ready.turn >= before.turn:
            self._newest[stage] = ready
        self.called = max(self.called, ready.turn)
        return before == ready and not answers

    def trains(self, stages: Iterable[int]) -> bool:
        """Return whether one of these is at a later meeting than this stage, about local steps."""
        said = (self._newest.get(stage) for stage in stages)
        return any(it is not None and it.turn > self.number and not it.evaluate for it in said)

    def here(self, stages: int) -> list[Ready | None]:
        """Return what the stages say at our meeting, in their order; None for each that has not come.

        A stage that evaluates has not come to a meeting about local steps: it comes when it hears that the others do not.
        """
        said = [self._newest.get(stage) for stage in range(stages)]
        evaluates = self.own is None or self.own.evaluate
        return [it if it is not None and it.turn == self.number and (evaluates or not it.evaluate) else None for it in said]


def has(ready: Ready) -> Has:
    """Return a stage's states from its message."""
    return Has(ready.step, ready.left, ready.points, ready.copies, ready.safe, ready.batches)


@dataclass(slots=True)
class Early:
    """Frames of steps to come, in the order in which they arrived."""

    _frames: dict[tuple[int, int], deque[tuple[int, StepFrame]]] = field(default_factory=dict)

    def put(self, stage: int, frame: StepFrame, most: int) -> None:
        """Keep a frame, one of at most `most` of its stage for its step. Raises ValueError: more than an honest neighbour can be ahead."""
        step = frame.turn, frame.step
        of = [key for key, waiting in self._frames.items() for other, _ in waiting if other == stage]
        if of.count(step) >= most or len({*of, step}) > MOST_STEPS_AHEAD:
            raise ValueError("too_far_ahead")
        self._frames.setdefault(step, deque()).append((stage, frame))

    def take(self, number: int, step: int) -> deque[tuple[int, StepFrame]]:
        """Return those of this step of this meeting, and drop older ones."""
        found = self._frames.pop((number, step), deque())
        self._frames = {key: waiting for key, waiting in self._frames.items() if key > (number, step)}
        return found
