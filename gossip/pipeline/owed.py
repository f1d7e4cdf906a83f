"""Expected messages between the stages of a crew, and for how long a stage with expected messages has been silent; pure.

A message is expected from the moment it is agreed: at a meeting everybody's Ready; at the start of a step each activation of the previous
stage, each gradient of the next stage, and everybody's part. A *turn* ends when nothing expected has arrived for as long as the crew waits.
A stage that owes a message and sent nothing at all in a turn has one more turn of silence. Any frame of a stage resets this count: a stage
that only waits for others still answers.

A message that cannot be used counts as not sent: its stage has one more turn of silence at once, which only rounds without one end.

A stage that is heard and keeps this one waiting without an excuse (`waiting.py`) is asked once a second in vain. Its turns last as many
seconds as the fastest step did, at least `TURN_S`, then twice as many, four and eight times: a stage that is slow at first is not freed.
Any result that is due resets them. So it is with one that puts off a meeting, until it comes and steps follow, or it is not the reason that
none do (`holding.py`).

A stage that calls a meeting before this one has finished what it does interrupts it; one that is not in the state in which the last meeting
said that all would be now, or that has no steps to do after one that had, costs steps as well (`holding.py`). Two such times are a turn,
since a stage calls after each message that it cannot use, and leaves its neighbor at the fourth: with two such neighbors it has called
seven times at most.

Messages that cannot be used and times that cost steps are forgiven one for every eight rounds without one, so a stage that goes on with
them is freed if they come more often than every ninth round. Honest ones come when an engine is lost, or an owner pauses his node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from starling.gossip.exchange.marks import Marks

TURNS = 4
"""Owed turns after which a seat is freed. A frame that is stuck on a dead connection is given up after as long as a turn of a meeting
lasts, and those behind it go with it: one turn may pass so at our end, one at the other, and before these the step's own. In the fourth
both ends had a connection, and the stage was asked once a second in vain."""
TURN_S = 30.0  # seconds of a turn in which a stage is silent
CALLS = 2  # times in a turn that a stage costs steps


@dataclass(slots=True)
class Vain:
    """Seconds in which each stage was waited for in vain, as turns of which each lasts twice as long as the one before."""

    turns: dict[int, int] = field(default_factory=dict)
    _seconds: dict[int, float] = field(default_factory=dict)  # of the current turn

    def add(self, stage: int, turn_s: float, seconds: float = 1.0) -> bool:
        """Count seconds; return whether they end a turn: one at most, as a machine may have slept. The first turn lasts `turn_s`."""
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds
        turns = self.turns.get(stage, 0)
        if self._seconds[stage] < turn_s * 2**turns:
            return False
        self.turns[stage], self._seconds[stage] = turns + 1, 0.0
        return True

    def end(self, stage: int) -> None:
        """Forget the seconds of a stage: it sent what was waited for."""
        self.turns.pop(stage, None)
        self._seconds.pop(stage, None)

    def clear(self) -> None:
        """Forget the seconds of all stages."""
        self.turns.clear()
        self._seconds.clear()


@dataclass(slots=True)
class RoundMarks:
    """How often each stage did something that costs the others steps, of which each round without it forgives a part."""

    _marks: Marks[int] = field(default_factory=Marks[int])
    _new: set[int] = field(default_factory=set)  # since a round was done

    def add(self, stage: int) -> None:
        """Count one more."""
        self._marks.add(stage)
        self._new.add(stage)

    def round(self) -> None:
        """Forgive a part: a round was done."""
        for stage in self._marks.marked - self._new:
            self._marks.forgive(stage)
        self._new.clear()

    def of(self, stage: int) -> float:
        """Return how many a stage has."""
        return self._marks.of(stage)

    def count(self, stage: int) -> int:
        """Return how many whole ones a stage has."""
        return int(self.of(stage))

    @property
    def stages(self) -> frozenset[int]:
        """Return all stages with at least one."""
        return frozenset(stage for stage in self._marks.marked if self.of(stage) >= 1.0)


@dataclass(slots=True)
class Owed:
    """Expected messages by stage."""

    due: dict[int, set[str]] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)
    unfit: RoundMarks = field(default_factory=RoundMarks)  # deliveries that cannot be used
    withheld: Vain = field(default_factory=Vain)  # since a result of a stage arrived
    put_off: Vain = field(default_factory=Vain)  # since a stage was at a meeting and did not keep steps from following
    costs: RoundMarks = field(default_factory=RoundMarks)  # interruptions, and meetings to which a stage came in another state than agreed
    proven: set[int] = field(default_factory=set)  # stages that equivocated
    _heard: set[int] = field(default_factory=set)  # in this turn

    def agree(self, debts: Iterable[tuple[int, str]]) -> None:
        """Set the expected messages by stage, replacing earlier ones. A turn begins."""
        self.due = {}
        for stage, what in debts:
            self.due.setdefault(stage, set()).add(what)
        self._heard.clear()

    def reset(self) -> None:
        """Forget all: the stages are other peers'."""
        self.due, self.turns = {}, {}
        self.proven.clear()
        self._heard.clear()
        self.forgive()

    def forgive(self) -> None:
        """Forget what stages that are heard did in vain, or at others' cost."""
        self.unfit, self.costs = RoundMarks(), RoundMarks()
        self.withheld.clear()
        self.put_off.clear()

    def done(self) -> None:
        """A step is finished, so all expected messages have arrived."""
        self.withheld.clear()

    def round(self) -> None:
        """A round is finished."""
        self.unfit.round()
        self.costs.round()

    def arrived(self, stage: int, what: str) -> None:
        """Remove an expected message."""
        if what in self.due.get(stage, ()):
            self.due[stage].remove(what)
            if what != "ready":
                self.withheld.end(stage)

    def heard(self, stage: int) -> None:
        """Record any frame of a stage."""
        self._heard.add(stage)
        self.turns.pop(stage, None)

    def end_turn(self) -> None:
        """Count a turn of silent stages, and begin the next."""
        for stage in self.debtors:
            if stage not in self._heard:
                self.turns[stage] = self.turns.get(stage, 0) + 1
        self._heard.clear()

    @property
    def debtors(self) -> tuple[int, ...]:
        """Return the stages with expected messages."""
        return tuple(sorted(stage for stage, due in self.due.items() if due))

    @property
    def arrears(self) -> tuple[int, ...]:
        """Return the stages with at least one turn of silence, or as many others as free a seat: fewer are nobody's fault."""
        others = {*self.withheld.turns, *self.put_off.turns, *self.costs.stages}
        return tuple(sorted({*self.turns, *self.unfit.stages, *self.proven, *(stage for stage in others if self.count(stage) >= TURNS)}))

    @property
    def mute(self) -> tuple[int, ...]:
        """Stages that have been in arrears for so long that their seats are freed."""
        return tuple(stage for stage in self.arrears if self.count(stage) >= TURNS)

    def count(self, stage: int) -> int:
        """Return the owed turns of a stage."""
        if stage in self.proven:
            return TURNS
        vain = self.withheld.turns, self.put_off.turns
        marks = self.unfit.of(stage) + self.costs.of(stage) / CALLS  # of both, as this stage has called a meeting because of either
        return max(int(self.turns.get(stage, 0) + marks), *(turns.get(stage, 0) for turns in vain))
