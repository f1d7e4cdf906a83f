"""Expected messages between the stages of a crew, and for how long a stage with expected messages has been silent; pure.

A message is expected from the moment it is agreed: at a meeting everybody's Ready; at the start of a step each activation of the previous
stage, each gradient of the next stage, and everybody's part. A *turn* ends when nothing expected has arrived for as long as the crew waits.
A stage that owes a message and sent nothing at all in a turn has one more turn of silence. Any frame of a stage resets this count: a stage
that only waits for others still answers.

A message that cannot be used counts as not sent: its stage has one more turn of silence at once, and only the next finished step resets it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

TURNS = 4
"""Owed turns after which a seat is freed. A frame that is stuck on a dead connection is given up after as long as a turn of a meeting
lasts, and those behind it go with it: one turn may pass so at our end, one at the other, and before these the step's own. In the fourth
both ends had a connection, and the stage was asked once a second in vain."""


@dataclass(slots=True)
class Owed:
    """Expected messages by stage."""

    due: dict[int, set[str]] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)
    unfit: dict[int, int] = field(default_factory=dict)  # deliveries by stage, since a step was done
    _heard: set[int] = field(default_factory=set)  # in this turn

    def agree(self, debts: Iterable[tuple[int, str]]) -> None:
        """Set the expected messages by stage, replacing earlier ones. A turn begins."""
        self.due = {}
        for stage, what in debts:
            self.due.setdefault(stage, set()).add(what)
        self._heard.clear()

    def reset(self) -> None:
        """Forget all: the stages are other peers'."""
        self.due, self.turns, self.unfit = {}, {}, {}
        self._heard.clear()

    def done(self) -> None:
        """A step is finished, so all expected messages have arrived."""
        self.unfit.clear()

    def refused(self, stage: int) -> None:
        """Count an unusable message of a stage."""
        self.unfit[stage] = self.unfit.get(stage, 0) + 1

    def arrived(self, stage: int, what: str) -> None:
        """Remove an expected message."""
        self.due.get(stage, set()).discard(what)

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
        """Return the stages with at least one counted turn."""
        return tuple(sorted({*self.turns, *self.unfit}))

    @property
    def mute(self) -> tuple[int, ...]:
        """Stages that have been in arrears for so long that their seats are freed."""
        return tuple(stage for stage in self.arrears if self.count(stage) >= TURNS)

    def count(self, stage: int) -> int:
        """Return the owed turns of a stage."""
        return self.turns.get(stage, 0) + self.unfit.get(stage, 0)
