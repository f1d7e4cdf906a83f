"""A local step or an evaluation of a crew at one of its stages: `pipeline.stage` with frames, timeouts and expected messages.

Shapes: N stages.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import structs

from starling.gossip.errors import EngineError
from starling.gossip.pipeline.company import Company, Flow, Moment
from starling.gossip.pipeline.crew_commands import ApplyStep, Blame, Computed, DoTask, Note, Send, Summarize, Unfit
from starling.gossip.pipeline.crew_states import StageStates
from starling.gossip.pipeline.owed import Owed
from starling.gossip.pipeline.roll import Early, Roll, StepFrame
from starling.gossip.pipeline.schedule import ahead
from starling.gossip.pipeline.stage import Apply, Compute, Part, Pass, Step, Tell, fine, shortened
from starling.gossip.pipeline.stage import Command as Task
from starling.gossip.wire.schema import Backward, Forward, Ready, StepReport, Waits

ASK_AGAIN_S = 1.0  # seconds until missing results and parts are requested again
ANSWERED_S = 0.5  # a stage that asks again sooner is not answered; less than the above, as requests take unequally long
FIRST_PATIENCE_S, LEAST_PATIENCE_S, TIMES = 30.0, 5.0, 8.0
"""For silence in a step: at first, and then so many times what a step takes."""
MOST_LONGER = 1.5  # how many times longer a step may be than the previous one without counting as an exception
MOST_BATCHES = 1 << 20  # of an evaluation


class Again(Exception):
    """The current work is abandoned, and the crew meets."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings by which the crews of a manifest train."""

    micro_batches: int  # of a step
    warm_up: int
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
    running: Step | None = None
    evaluating: bool = False
    _early: Early = field(default_factory=Early)
    _answered: dict[int, float] = field(default_factory=dict)  # stage -> time of the last result that was sent to it again
    _tasks: deque[Task] = field(default_factory=deque)
    _last_part: StepReport | None = None  # our part of the last finished step
    _usual_s: float = 0.0  # usual seconds of a step; 0: unknown
    _stretch: float = 1.0  # of patience
    _long: dict[int, int] = field(default_factory=dict)  # by stage, how often its message was scaled down
    _over: int = 0  # the last meeting with an abandoned step: later frames of its steps are ignored

    def renamed(self) -> None:
        """The crew is another one."""
        self._early, self._over, self._long, self.moment.trouble = Early(), 0, {}, True
        self._answered.clear()

    def train(self, round: int) -> Flow[None]:
        """Do a local step. Raises Again: it was abandoned."""
        began, states = self.moment.now, self.states
        parts = yield from self._through(self.plan.micro_batches, evaluate=False)
        loss = sum(part.loss for part in parts)
        yield ApplyStep(round, shortened(parts, self.plan.clip_norm), loss, fine(parts), states.step + 1)
        states.step += 1
        took_s = self.moment.now - began
        self._usual_s = min(took_s, MOST_LONGER * self._usual_s) if self._usual_s else took_s
        self._stretch = 1.0
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
        if isinstance(frame, StepReport) and frame.again:
            self._part_wanted(stage, frame)
        elif self.running is not None and of == here:
            self._feed(self.running, stage, frame)
        elif frame.turn > self._over and (of > here or (frame.turn == self.roll.number and self.running is None)):
            most = ahead(stage, self.company.stages, MOST_BATCHES, self.plan.warm_up) + 1
            self._early.put(stage, frame, most)

    def _through(self, micro_batches: int, *, evaluate: bool) -> Flow[tuple[Part, ...]]:
        company, moment = self.company, self.moment
        core = Step(company.stage, company.stages, micro_batches, self.plan.warm_up)
        self.running, self.evaluating, self._tasks = core, evaluate, deque(core.begin())
        self.owed.agree(self._debts(micro_batches))
        timeout_s = self._timeout_s
        try:
            self._feed_early(core)
            silent_at, ask_at = moment.now + timeout_s, moment.now + ASK_AGAIN_S
            while True:
                while self._tasks:
                    task = self._tasks.popleft()
                    if isinstance(task, Apply):
                        return task.parts
                    yield from self._do(core, task)
                    silent_at, ask_at = moment.now + timeout_s, moment.now + ASK_AGAIN_S
                if moment.trouble:
                    raise Again
                if moment.now >= ask_at:
                    ask_at += ASK_AGAIN_S
                    self._ask(core)
                if moment.now >= silent_at:
                    self._silent(timeout_s)
                    raise Again
                moment.deadline = min(silent_at, ask_at)
                yield None
        finally:
            self.running = None
            if not core.applied:
                self._over = self.roll.number

    def asked(self, stage: int, ready: Ready) -> None:
        """Send a stage the result that it lacks again, if it is one of ours."""
        core, now = self.running, self.moment.now
        for waits in ready.waits:
            here = core is not None and (waits.turn, waits.step) == (self.roll.number, self.states.step)
            sent = core.wanted(stage, waits.done) if core is not None and here and waits.stage == stage else None
            if sent is not None and now >= self._answered.get(stage, -math.inf) + ANSWERED_S:
                self._answered[stage] = now
                self._send(sent)

    def _ask(self, core: Step) -> None:
        """Request what is missing again: parts of all others, or the neighbor's result."""
        company, states, number = self.company, self.states, self.roll.number
        if core.waits and self._last_part is not None:
            self.moment.tell(company, structs.replace(self._last_part, again=True))
        elif core.lacks is not None:
            core.ask()
            neighbor = company.stage + (-1 if core.lacks[0] == "F" else 1)
            waits = Waits(company.stage, number, states.step, core.done)
            self.moment.commands.append(Send(company.peers[neighbor], Ready(company.name, 0, 0, states.step, 0, False, waits=(waits,))))

    @property
    def _timeout_s(self) -> float:
        usual_s = max(LEAST_PATIENCE_S, TIMES * self._usual_s) if self._usual_s else FIRST_PATIENCE_S
        return self._stretch * usual_s

    def _debts(self, micro_batches: int) -> Iterator[tuple[int, str]]:
        company = self.company
        for micro in range(micro_batches):
            if company.stage > 0:
                yield company.stage - 1, f"activation {micro}"
            if company.stage < company.stages - 1:
                yield company.stage + 1, f"gradient {micro}"
        for stage in company.others:
            yield stage, "part"

    def _silent(self, timeout_s: float) -> None:
        self.owed.end_turn()
        owing = ", ".join(map(str, self.owed.debtors))
        text = f"nothing came from other stages for {timeout_s:.0f} s, of which {owing} owe something; the crew meets"
        self.moment.commands.append(Note("crew_silent", text, "warning"))
        self._stretch *= 2.0  # the timeout may have been too short

    def _refuse(self, sender: int, reason: str) -> None:
        """Charge what cannot be computed with to who sent it; labels to the first stage as well, since others pass them on."""
        suspects = {sender, 0} if reason.endswith("labels") else {sender}
        for stage in sorted(suspects - {self.company.stage}):
            self.owed.refused(stage)
        if len(suspects) == 1:
            self.moment.commands.append(Blame(self.company.peers[sender], reason))

    def _too_long(self, sender: int, times: float) -> None:
        """Tell the owner, the first time and whenever it is ten times as often."""
        often = self._long[sender] = self._long.get(sender, 0) + 1
        if often == 10 ** (len(str(often)) - 1):
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

    def _part_wanted(self, stage: int, frame: StepReport) -> None:
        """A stage lacks our part of a step, perhaps one that is applied here: it is small, and the step would else be done again."""
        last, core = self._last_part, self.running
        if last is not None and (last.turn, last.step) == (frame.turn, frame.step):
            self.moment.commands.append(Send(self.company.peers[stage], last))
        of_this = (frame.turn, frame.step) == (self.roll.number, self.states.step)
        if core is not None and of_this and not core.heard(stage):
            self._feed(core, stage, frame)
