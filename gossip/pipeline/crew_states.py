"""States of one stage, as its crew's machine knows them: stored ones, those copied elsewhere, and copies of the next stage.

    a state is kept             it goes to the stage before in the ring (PushState), beside the steps that follow; Kept says that it is safe
    a stage on a new machine    is given the copy that the stage before keeps (GiveState), and takes it over

Shapes: N stages.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

from starling.gossip.errors import EngineError
from starling.gossip.pipeline.copies import Copies
from starling.gossip.pipeline.crew_commands import Command, GiveState, Note, PushState, Result, Send, States, UseState
from starling.gossip.pipeline.meeting import Fetch, Start
from starling.gossip.wire.schema import Piece, PieceStored


@dataclass(slots=True)
class StageStates:
    """The states of stage `stage` of N."""

    stage: int
    stages: int
    copies: Copies
    step: int  # local steps that made the state that the stage is in
    points: tuple[int, ...] = ()
    safe: int = 0  # the newest that is kept elsewhere, counted from 1; 0: none
    given: tuple[int, bytes] | None = None  # a state that came back, to be taken over
    pushing: bool = False

    @property
    def before(self) -> int:
        """The stage that keeps our states."""
        return (self.stage - 1) % self.stages

    @property
    def behind(self) -> int:
        """The stage whose states we keep."""
        return (self.stage + 1) % self.stages

    def used(self, result: Result) -> None:
        """Take note of what the engine has. Raises EngineError: it could not use a state."""
        if not isinstance(result, States):
            raise EngineError(f"the stage's state cannot be used: {result}")
        self.step, self.points = result.step, result.points

    def kept(self, sender: int, frame: PieceStored) -> None:
        """Mark a state of ours as safe, if the previous stage reports that it has an existing one."""
        if sender == self.before and frame.stage == self.stage and frame.step in self.points:
            self.safe = max(self.safe, frame.step + 1)

    def piece(self, peer: str, sender: int, piece: Piece, *, taking: bool) -> Send | None:
        """Store bytes of a state; return the answers. `taking`: adopt a state that came back. Raises ValueError: an unexpected state."""
        given_back = piece.stage == self.stage and sender == self.before
        copied = piece.stage == sender == self.behind
        if not given_back and not copied:
            raise ValueError("piece_of_another_stage")
        state = self.copies.take(peer, piece)
        if state is None:
            return None
        if copied:
            self.copies.keep(piece.step, state)
            return Send(peer, PieceStored(piece.crew, piece.stage, piece.step))
        if taking and not self.points:  # who has states of its own knows them best
            self.given = (piece.step, state)
        return None

    def take(self, crew: int, keeper: str) -> Generator[UseState, Result, Note | None]:
        """Yield the commands that adopt the state that came back; send in the result."""
        if self.given is None:
            return None
        (step, state), self.given = self.given, None
        result = yield UseState("take", crew, step, state)
        if not isinstance(result, States):
            fields = {"stage": self.before, "peer": keeper}  # no fault: whoever had this stage may have sent it so
            return Note("crew_state_unusable", f"a state that stage {self.before} kept for this one cannot be used", "warning", fields)
        self.used(result)
        self.safe = step + 1
        return Note("crew_restored", f"this stage's state after {step} local steps came from another machine", fields={"step": step})

    def to_give(self, fetch: Fetch, peers: tuple[str, ...]) -> GiveState | None:
        """Return the command that sends the next stage its copy, if it needs it and the copy is here."""
        state = self.copies.kept.get(fetch.step)
        if self.behind not in fetch.stages or state is None:
            return None
        return GiveState(peers[self.behind], self.behind, fetch.step, state)

    def push(self, peers: tuple[str, ...]) -> PushState | None:
        """Return what makes our newest state safe, unless it is or is on its way."""
        if not self.points or self.safe > self.points[-1] or self.pushing:
            return None
        self.pushing = True
        return PushState(peers[self.before], self.stage, self.points[-1])


def notes(start: Start) -> Iterator[Command]:
    """Yield reports for the owner about the state from which the crew continues."""
    if start.back:
        text = f"the crew goes back to its state after {start.step} local steps, and does those since then again"
        yield Note("crew_back", text, fields={"step": start.step})
    if start.torn:
        text = "the crew has no state that all its stages have; each goes on from its own"
        yield Note("crew_torn", text, "warning", {"step": start.step})
