"""A local step or an evaluation of a crew at one of its stages: `pipeline.stage` with frames, timeouts and expected messages.

Shapes: N stages.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from msgspec import structs

from starling.gossip.errors import EngineError
from starling.gossip.pipeline.company import Company, Flow, Moment, Throttle
from starling.gossip.pipeline.crew_commands import ApplyStep, Blame, Computed, DoTask, Note, Send, Summarize, Unfit
from starling.gossip.pipeline.crew_states import StageStates
from starling.gossip.pipeline.owed import TURN_S, TURNS, Owed
from starling.gossip.pipeline.roll import Early, Roll, StepFrame
from starling.gossip.pipeline.schedule import ahead
from starling.gossip.pipeline.stage import Apply, Compute, Part, Pass, Step, Tell, fine, shortened
from starling.gossip.pipeline.stage import Command as Task
from starling.gossip.pipeline.waiting import Waiting
from starling.gossip.wire.schema import Backward, Forward, Ready, StepReport

ASK_AGAIN_S = 1.0  # seconds until missing results and parts are requested again
ANSWERED_S = 0.5  # a stage that asks again sooner is not answered; less than the above, as requests take unequally long
MOST_BATCHES = 1 << 20  # of an evaluation


class Again(Exception):
    """The current work is abandoned, and the crew meets."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings by which the crews of a manifest train."""

    micro_batches: int  # of a step
    warm_up: int
    local_steps: int  # of a round
    keep_after: int  # local steps between states that are kept
    clip_norm: float | None


@dataclass(slots=True)
class CrewStep:
    """A stage's part in a step, and the state that it needs for the next one."""

    company: Company
    roll: Roll
    states: StageStates
    owed: Owed
    plan: Plan
    moment: Moment
    waiting: Waiting
    free: Callable[[Iterable[int]], None]  # frees the seats of stages in arrears
    running: Step | None = None
    evaluating: bool = False
    _early: Early = field(default_factory=Early)
    _answered: dict[int, float] = field(default_factory=dict)  # stage -> time of the last answer to its request
    _tasks: deque[Task] = field(default_factory=deque)
    fastest_s: float = 0.0  # seconds of the fastest step; 0: none is done
    _last_part: StepReport | None = None  # our part of the last finished step
    _long: Throttle = field(default_factory=Throttle)  # messages that were scaled down
    _over: int = 0  # the last meeting with an abandoned step: later frames of its steps are ignored

    def renamed(self) -> None:
        """The crew is another one."""
        self._early, self._over, self._long, self.moment.trouble = Early(), 0, Throttle(), True
        self._answered.clear()
        self.waiting.reset()

    def train(self, round: int) -> Flow[None]:
        """Do a local step. Raises Again: it was abandoned."""
        began, states = self.moment.now, self.states
        parts = yield from self._through(self.plan.micro_batches, evaluate=False)
        loss = sum(part.loss for part in parts)
        yield ApplyStep(round, shortened(parts, self.plan.clip_norm), loss, fine(parts), states.step + 1)
        states.step += 1
        took_s = self.moment.now - began
        self.fastest_s = min(self.fastest_s or took_s, took_s)
        self.owed.done()

    def evaluate(self, batches: int) -> Flow[Part | None]:
        """Take held-out data through all stages -> the last one's part; None: there is no value."""
        try:
            parts = yield from self._through(batches, evaluate=True)
        except Again:
            return None
        return parts[-1] if parts[-1].samples and fine(parts) else None

    def frame(self, stage: int, frame: StepFrame) -> None:
        """Take a frame of another stage, now or when its step is done here. Raises ValueError: no honest stage sends it."""
        of, here = (frame.turn, frame.step), (self.roll.number, self.states.step)
        if self.running is not None and of == here:
            self._feed(self.running, stage, frame)
        elif frame.turn > self._over and (of > here or (frame.turn == self.roll.number and self.running is None)):
            most = ahead(stage, self.company.stages, MOST_BATCHES, self.plan.warm_up) + 1
            self._early.put(stage, frame, most)

    def _through(self, micro_batches: int, *, evaluate: bool) -> Flow[tuple[Part, ...]]:
        company, moment = self.company, self.moment
        core = Step(company.stage, company.stages, micro_batches, self.plan.warm_up)
        self.running, self.evaluating, self._tasks = core, evaluate, deque(core.begin())
        self.owed.agree(self._debts(micro_batches))
        try:
            self._feed_early(core)
            over_at, ask_at = moment.now + TURN_S, moment.now + ASK_AGAIN_S
            while True:
                while self._tasks:
                    task = self._tasks.popleft()
                    if isinstance(task, Apply):
                        return task.parts
                    yield from self._do(core, task)
                    over_at, ask_at = moment.now + TURN_S, moment.now + ASK_AGAIN_S
                if moment.trouble:
                    raise Again
                if moment.now >= ask_at:
                    ask_at = moment.now + ASK_AGAIN_S
                    self._ask(core)
                if moment.now >= over_at:
                    over_at = moment.now + TURN_S
                    self._silent()
                moment.deadline = min(over_at, ask_at)
                yield None
        finally:
            self.running = None
            if not core.applied:
                self._over = self.roll.number

    def asked(self, stage: int, ready: Ready) -> None:
        """Send a stage what it lacks of us again, perhaps our part of a step that is applied here; else, unless we wait too, that we live.

        Raises ValueError: no honest stage says that.
        """
        core, moment = self.running, self.moment
        if ready.turn:
            return  # it is at a meeting
        self.waiting.learn(ready.waits)
        own = next((waits for waits in ready.waits if waits.stage == stage), None)
        if own is None:
            return
        self.waiting.says(stage, moment.now)
        if moment.now < self._answered.get(stage, -math.inf) + ANSWERED_S:
            return
        self._answered[stage] = moment.now
        if self.roll.concluded.differs(ready):
            moment.commands.append(Send(self.company.peers[stage], self.roll.minutes(ready.heard_at, self.company.stages)))
        part, sent = self._last_part, None
        part = part if part is not None and (part.turn, part.step) == (own.turn, own.step) else None
        if core is not None and (own.turn, own.step) == (self.roll.number, self.states.step):
            sent, part = core.wanted(stage, own.done), part if own.done >= 2 * core.micro_batches else None
        if sent is not None:
            self._send(sent)
        elif part is not None:
            moment.commands.append(Send(self.company.peers[stage], part))
        elif core is None or not (core.waits or core.lacks):
            moment.commands.append(Send(self.company.peers[stage], self.roll.alive(self.states.step)))

    def _ask(self, core: Step) -> None:
        """Request what is missing again, say so to all, and count the second for those who keep us waiting."""
        turn, step, moment = self.roll.number, self.states.step, self.moment
        if not (core.waits or core.lacks):
            return
        if core.lacks:
            core.ask()
        moment.tell(self.company, structs.replace(self.roll.alive(step), waits=self.waiting.say(turn, step, core.done)))
        for stage in self.waiting.without_excuse(core, turn, step):
            if self.owed.withheld.add(stage, max(TURN_S, self.fastest_s)):
                turns, fields = self.owed.withheld.turns[stage], {"stage": stage, "peer": self.company.peers[stage]}
                text = f"stage {stage} was asked in vain for a result for long, and does not say that it waits; turn {turns} of {TURNS}"
                moment.commands.append(Note("crew_withheld", text, "warning", fields))
        self.free(self.owed.mute)

    def _debts(self, micro_batches: int) -> Iterator[tuple[int, str]]:
        company = self.company
        for micro in range(micro_batches):
            if company.stage > 0:
                yield company.stage - 1, f"activation {micro}"
            if company.stage < company.stages - 1:
                yield company.stage + 1, f"gradient {micro}"
        for stage in company.others:
            yield stage, "part"

    def _silent(self) -> None:
        """Count a turn of the stages that owe something and sent no frame."""
        self.owed.end_turn()
        if self.owed.turns:
            silent = ", ".join(map(str, sorted(self.owed.turns)))
            text = f"nothing came for {TURN_S:.0f} s from stages that owe something: {silent}"
            self.moment.commands.append(Note("crew_silent", text, "warning"))
        self.free(self.owed.mute)

    def _refuse(self, sender: int, reason: str) -> None:
        """Charge what cannot be computed with to who sent it; labels to the first stage as well, since others pass them on."""
        suspects = {sender, 0} if reason.endswith("labels") else {sender}
        for stage in sorted(suspects - {self.company.stage}):
            self.owed.unfit.add(stage)
        if len(suspects) == 1:
            self.moment.commands.append(Blame(self.company.peers[sender], reason))

    def _too_long(self, sender: int, times: float) -> None:
        """Tell the owner, the first time and whenever it is ten times as often."""
        if often := self._long.count(sender):
            text = f"what stage {sender} sent was {times:.0f} times as long as usual, and was shortened; that was so {often} times"
            fields = {"stage": sender, "peer": self.company.peers[sender], "times": often}
            self.moment.commands.append(Note("crew_shortened", text, "warning", fields))

    def _do(self, core: Step, task: Task) -> Flow[None]:
        company, states, roll = self.company, self.states, self.roll
        if isinstance(task, Compute) and self.evaluating and task.way == "B":
            self._tasks.extend(core.computed(b""))
        elif isinstance(task, Compute):
            result = yield DoTask(task.way, company.crew, states.step, task.micro, task.payload, task.labels, self.evaluating)
            sender = company.stage + (-1 if task.way == "F" else 1)
            if isinstance(result, Unfit):
                self._refuse(sender, result.reason)
                raise Again
            if not isinstance(result, Computed):
                raise EngineError(f"the stage's computation failed: {result}")
            if result.over:
                self._too_long(sender, result.over)
            self._tasks.extend(core.computed(result.payload, result.labels))
        elif isinstance(task, Pass):
            self._send(task)
        else:
            assert isinstance(task, Tell), task
            part = yield Summarize()
            assert isinstance(part, Part), part
            figures = (part.squares, part.loss, part.value, part.samples, part.fine)
            self._last_part = StepReport(company.name, roll.number, states.step, *figures)
            self.moment.tell(company, self._last_part)
            self._tasks.extend(core.part(company.stage, part))

    def _send(self, result: Pass) -> None:
        company = self.company
        where = (company.name, self.roll.number, self.states.step, result.micro, result.payload)
        frame = Forward(*where, result.labels) if result.way == "F" else Backward(*where)
        self.moment.commands.append(Send(company.peers[result.to], frame))

    def _feed_early(self, core: Step) -> None:
        for stage, frame in self._early.take(self.roll.number, self.states.step):
            try:
                self._feed(core, stage, frame)
            except ValueError as error:
                self.moment.commands.append(Blame(self.company.peers[stage], f"crew_{error}"))

    def _feed(self, core: Step, stage: int, frame: StepFrame) -> None:
        """Raise ValueError: no honest stage sends that."""
        if self.evaluating and not isinstance(frame, StepReport) and frame.micro >= core.micro_batches:
            return  # stage 0 may have told its sender of more held-out data
        if isinstance(frame, StepReport):
            part = Part(frame.squares, frame.loss, frame.value, frame.samples, frame.fine)
            self._tasks.extend(core.part(stage, part))
            self.owed.arrived(stage, "part")
        elif isinstance(frame, Forward):
            self._from(stage, self.company.stage - 1)
            self._tasks.extend(core.arrived("F", frame.micro, frame.payload, frame.labels))
            self.owed.arrived(stage, f"activation {frame.micro}")
        else:
            self._from(stage, self.company.stage + 1)
            self._tasks.extend(core.arrived("B", frame.micro, frame.payload))
            self.owed.arrived(stage, f"gradient {frame.micro}")

    def _from(self, stage: int, neighbour: int) -> None:
        if stage != neighbour:
            raise ValueError("no_such_neighbour")
