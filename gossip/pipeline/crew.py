"""A crew's local steps, as one of its stages sees them: a machine without I/O, clock or random numbers.

Theory of operation. All stages meet at the begin of every round and after every trouble: each sends what it has (Ready), and all conclude
the same (`meeting.agree`). Then steps are done (`pipeline.stage`), one task of this stage's engine at a time; frames of a neighbour that is
ahead wait for us. A crew is named by its peers and their incarnations, and a meeting by its number, so a frame of another crew or of a step
that was given up is no fault: it is late, and ignored.

    idle        nothing is wanted: a call to a meeting is answered with number 0, and frames of steps wait
    lacking     the crew is not whole
    looking     the engine says which states it has
    meeting     our Ready is sent each second until all are here; a later meeting, or another crew, ends this one
    fetching    stages on a new machine are given their states; then all meet again
    beginning   go back, keep, forget what was computed
    stepping    a local step, or an evaluation

    a peer dies or restarts        the crew has another name: what is under way is given up, and those who are there meet
    a frame is lost                it is asked for once a second, and sent again
    a stage says one thing here    its two statements are a fault (`minutes.py`), and its peer's seat is freed
    and another there
    a stage owes and is mute,      its peer's seat is freed (`owed.py`, `waiting.py`); so is it when another stage has already left over it
    withholds it, or sends
    nothing of use; puts off
    meetings, or calls them
    without end

`receive`, `tick`, `joined` and `parted` may come at any time; `want` when nothing is wanted; `done` after each `Work`.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import suppress

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.pipeline.company import Company, Flow, Moment
from starling.gossip.pipeline.copies import Copies
from starling.gossip.pipeline.crew_commands import Abandon, Command, Evaluated, Outcome, Result, Trained
from starling.gossip.pipeline.crew_meeting import CrewMeeting
from starling.gossip.pipeline.crew_states import StageStates
from starling.gossip.pipeline.crew_step import Again, CrewStep, Plan
from starling.gossip.pipeline.freed_seats import FreedSeats
from starling.gossip.pipeline.holding import Holding
from starling.gossip.pipeline.owed import Owed
from starling.gossip.pipeline.roll import Roll
from starling.gossip.pipeline.waiting import Keys, Waiting
from starling.gossip.wire.schema import Crew as Frame
from starling.gossip.wire.schema import Minutes, Piece, PieceStored, Ready

EVALUATION_S = 30.0  # seconds for a meeting about an evaluation that others may no longer need


class Crew:
    """A stage's machine. `states` begins with the local steps of the model here, `batches` are those of held-out data at stage 0."""

    def __init__(self, stage: int, stages: int, plan: Plan, copies: Copies, step: int, batches: int, keys: Keys) -> None:
        self.company, self.roll, self.owed = Company(stage, stages), Roll(), Owed()
        self.states = StageStates(stage, stages, copies, step)
        self._moment = moment = Moment()
        waiting = Waiting(self.company, keys)
        self.seats = FreedSeats(self.company, self.owed, moment, self.states, self.roll)
        shared = self.company, self.roll, self.states, self.owed
        self.meeting = CrewMeeting(*shared, moment, waiting, self.seats, Holding(stage), plan, batches)
        self.steps = CrewStep(*shared, plan, moment, waiting, self.seats.free)
        self._flow: Flow[Outcome] | None = None
        self._busy = False  # the engine is
        self._away: list[int] = []  # stages without whom the crew was not whole, when it was whole last and worked
        self._trained_at = math.inf  # when the last round's steps were done

    @property
    def phase(self) -> str:
        """Return the current phase."""
        return self._moment.phase

    @property
    def deadline(self) -> float:
        """Return the time at which `tick` is due."""
        return math.inf if self._busy else self._moment.deadline

    def train(self, round: int, left: int, now: float) -> list[Command]:
        """Want the `left` local steps of a round. Ends in Trained."""
        self.meeting.slow_s = max(self.steps.fastest_s, now - self._trained_at)
        return self._want(self._training(round, left), now)

    def evaluate(self, round: int, left: int, now: float) -> list[Command]:
        """Want an evaluation after `round` rounds, before the `left` local steps of the next. Ends in Evaluated."""
        return self._want(self._evaluation(round, left, now + EVALUATION_S), now)

    def give_up(self) -> None:
        """Drop all current work: the engine is lost."""
        if self._flow is not None:
            self._flow.close()
        self._flow, self._busy, self._moment.phase = None, False, "idle"

    def done(self, result: Result, now: float) -> list[Command]:
        """Process the engine's answer. Raises EngineError: it cannot continue."""
        self._moment.now, self._busy = now, False
        return self._go_on(result)

    def tick(self, now: float) -> list[Command]:
        """Advance time."""
        self._moment.now = now
        return self._go_on()

    def joined(self, crew: int, name: bytes, peers: tuple[str, ...], now: float, *, alone: bool, carried: bool = False) -> list[Command]:
        """The crew lacks nobody. `alone`: there is no other; `carried`: it is the rest of the one before, whose states are as good here."""
        company, states = self.company, self.states
        self._moment.now, company.alone = now, alone
        if peers != company.peers or self.seats.peers:  # what was counted outlives a restart
            self.owed.reset()
            self.meeting.forget()
            self._away = []
        self.meeting.back(self._away)
        self._away = []
        if self.seats.peers:
            return self._go_on()  # one of them was away too often
        if name == company.name:
            company.whole = True
            return self._go_on()
        if company.peers[states.before :][:1] != peers[states.before :][:1]:
            states.safe = 0  # another peer kept them
        if crew != company.crew:
            self.meeting.carried = carried
            if not carried:
                states.copies.clear()
        self.roll.reset(name)
        self.steps.renamed()
        self.meeting.renamed()
        for stage, ready in company.rename(crew, name, peers):
            with suppress(ValueError):  # what no honest stage says; it came when nobody could know
                self.meeting.came(stage, ready)
        return self._go_on()

    def parted(self, left: Collection[str], now: float, *, away: Collection[str] = ()) -> list[Command]:
        """The crew lacks somebody; `left`: peers of it that live, and sit elsewhere; `away`: those without their seats here."""
        company, self._moment.now = self.company, now
        if company.whole:
            company.whole, self._moment.trouble = False, True
            self._away = [company.peers.index(peer) for peer in away if self._flow is not None]
        if left:
            self.seats.follow(left)
        return self._go_on()

    def receive(self, peer: str, frame: Frame, now: float) -> list[Command]:
        """Take a frame of a member. Raises RemoteProtocolError: no honest one sends it."""
        company, self._moment.now = self.company, now
        stage = company.stage_of(peer)
        if stage is not None:
            self.owed.heard(stage)
        if stage is None or frame.crew != company.name:  # a frame of another crew, or of an earlier or later composition of ours
            company.strange(peer, frame)
            return []
        try:
            self._take(stage, peer, frame)
        except ValueError as error:
            raise RemoteProtocolError(peer, f"crew_{error}") from error
        return self._go_on()

    def pushed(self) -> None:
        """PushState is over, whether or not all arrived."""
        self.states.pushing = False

    def _want(self, flow: Flow[Outcome], now: float) -> list[Command]:
        assert self._flow is None, self._moment.phase
        self._moment.now, self._flow = now, flow
        return self._go_on()

    def _go_on(self, result: Result = None) -> list[Command]:
        moment = self._moment
        if self._flow is not None and not self._busy:
            moment.deadline = math.inf
            try:
                work = self._flow.send(result)
            except StopIteration as end:
                self._flow, moment.phase = None, "idle"
                moment.commands.append(end.value)
            else:
                self._busy = work is not None
                if work is not None:
                    moment.commands.append(work)
        commands, moment.commands = moment.commands, []
        return commands

    def _take(self, stage: int, peer: str, frame: Frame) -> None:
        match frame:
            case Ready():
                self._called(stage, frame)
            case Minutes():
                self.meeting.minutes(frame)
            case Piece():
                answer = self.states.piece(peer, stage, frame, taking=self.meeting.open)
                self._moment.commands += [] if answer is None else [answer]
                self.meeting.given(stage, frame)
            case PieceStored():
                self.states.kept(stage, frame)
            case _:
                self.steps.frame(stage, frame)

    def _called(self, stage: int, ready: Ready) -> None:
        """Come to a later meeting than ours, unless its caller has applied a step that we have not yet."""
        steps, moment = self.steps, self._moment
        self.seats.named(stage, ready)
        steps.asked(stage, ready)
        if not self.meeting.called(stage, ready, busy=self._busy):
            return
        leaves = steps.running is not None and (steps.evaluating or ready.step <= self.states.step)
        moment.trouble = moment.trouble or leaves
        if self.meeting.incomplete or (leaves and not steps.evaluating):
            self.meeting.interrupted()

    def _training(self, round: int, left: int) -> Flow[Outcome]:
        while True:
            agreed = yield from self.meeting.agreed(round, left, evaluate=False, until=math.inf)
            assert agreed is not None, "nobody evaluates, and there is no end to wait for"
            round, start = agreed  # noqa: A001
            yield from self.meeting.begin(start)
            self._moment.phase = "stepping"
            try:
                while self.states.step < start.until:
                    yield from self.steps.train(round)
            except Again:
                yield Abandon()
                left = max(0, start.until - self.states.step)
            else:
                self._trained_at = self._moment.now
                if start.steps:
                    self.meeting.done()
                return Trained(round)

    def _evaluation(self, round: int, left: int, until: float) -> Flow[Outcome]:
        agreed = yield from self.meeting.agreed(round, left, evaluate=True, until=until)
        if agreed is None or (start := agreed[1]).back or start.torn or not start.batches:
            return Evaluated(None)
        self._moment.phase = "stepping"
        last = yield from self.steps.evaluate(start.batches)
        yield Abandon()
        return Evaluated(last)
