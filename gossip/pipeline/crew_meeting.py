"""Meetings of a crew, as one of its stages takes part: until all have reported their states, and know from which to continue."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from starling.gossip.pipeline.company import Company, Flow, Moment, Throttle
from starling.gossip.pipeline.crew_commands import Abandon, Note, Send, UseState
from starling.gossip.pipeline.crew_states import StageStates, notes
from starling.gossip.pipeline.crew_step import Plan
from starling.gossip.pipeline.freed_seats import FreedSeats
from starling.gossip.pipeline.holding import Holding
from starling.gossip.pipeline.later_rounds import LaterRounds
from starling.gossip.pipeline.meeting import KEPT, Fetch, Start, agree
from starling.gossip.pipeline.minutes import body, differ
from starling.gossip.pipeline.owed import TURN_S, TURNS, Owed
from starling.gossip.pipeline.roll import MOST_SKIPPED, Roll, has
from starling.gossip.pipeline.waiting import Waiting
from starling.gossip.wire.schema import Minutes, Piece, Ready

REPEAT_S = 1.0  # a Ready that is not answered by all is sent again
FETCH_S = 5.0  # seconds for a state to start arriving; the next meeting reports missing ones


@dataclass(slots=True)
class CrewMeeting:
    """A stage's part in meetings, and the state that it needs for the next one."""

    company: Company
    roll: Roll
    states: StageStates
    owed: Owed
    moment: Moment
    waiting: Waiting
    seats: FreedSeats
    holding: Holding
    plan: Plan
    batches: int  # held-out batches at stage 0
    rounds: LaterRounds = field(default_factory=LaterRounds)
    slow_s: float = 0.0  # seconds of the longest of this stage's fastest step, its last time between rounds' steps, and what it gave since
    open: bool = False
    _calling: bool = False  # our Ready is repeated anyway, so it is not sent in answer
    carried: bool = False  # our states are valid in the current crew
    _fetched: tuple[int, ...] = ()  # stages that are given their states, by the last conclusion
    _ahead: Throttle = field(default_factory=Throttle)  # reports of rounds that this stage did not go to
    _counted_at: float = 0.0  # up to when the stages of `holding` were waited for

    def agreed(self, round: int, left: int, until: float, *, evaluate: bool) -> Flow[tuple[int, Start] | None]:
        """Meet until all know where to go on -> the round to do, and from where; None: we evaluate and others do not, or it is `until`."""
        self.open = True
        try:
            while True:
                yield from self._whole(until)
                if not self.company.whole:
                    return None
                yield from self._poll()
                if evaluate and self.roll.trains(self.company.others):
                    return None  # who came to their meeting with this would have to call another one
                number, self._calling = self.roll.open(), True
                told = yield from self._all(self._ready(number, round, left, evaluate=evaluate), until)
                self._calling = False
                if told is None:
                    if self.moment.now >= until:
                        return None
                    continue
                self.roll.concluded.add(number, told)
                conclusion = agree([has(ready) for ready in told], self.plan.keep_after, self.plan.local_steps)
                self._came(None if evaluate else conclusion, told)
                mixed = len({ready.evaluate for ready in told}) > 1
                if mixed or not conclusion.steps:  # this stage calls the next one soon, which would interrupt who has not heard all
                    self.moment.tell(self.company, self.roll.minutes(number, self.company.stages))
                if mixed:
                    return None
                self._fetched = ()
                if isinstance(conclusion, Start):
                    return (round if evaluate else self._later(round, told)), conclusion
                self._fetched = conclusion.stages
                yield from self._fetch(conclusion)
        finally:
            self.open = self._calling = False

    def begin(self, start: Start) -> Flow[None]:
        """Go to the agreed state."""
        states, company, commands = self.states, self.company, self.moment.commands
        self.moment.phase = "beginning"
        commands += notes(start)
        states.safe = 0 if start.torn else states.safe
        if start.back:
            states.used((yield UseState("back", company.crew, start.step)))
        yield Abandon()
        if start.torn or (start.keep and start.step not in states.points):
            states.used((yield UseState("keep", company.crew, start.step)))
        if (push := states.push(company.peers)) is not None:
            self.moment.commands.append(push)
        states.step = start.step

    def called(self, stage: int, ready: Ready, *, busy: bool) -> bool:
        """A stage is at a meeting -> whether it is a later one than ours. `busy`: we cannot come at once.

        Raises ValueError: as `came`.
        """
        roll, peer = self.roll, self.company.peers[stage]
        if ready.turn < max(1, roll.number):
            return False
        again = self.came(stage, ready)
        if again and not self._calling and roll.own is not None and roll.own.turn == ready.turn:  # it lacks our Ready, or another's
            whole = roll.minutes(ready.turn, self.company.stages) if roll.concluded.at(ready.turn) else None
            self.moment.commands.append(Send(peer, whole or structs.replace(roll.own, answers=True)))
        elif roll.concluded.differs(ready):
            self.moment.commands.append(Send(peer, roll.minutes(ready.heard_at, self.company.stages)))
        if ready.turn == roll.number:
            return False
        if busy or not self.open:
            self.moment.commands.append(Send(peer, roll.alive(self.states.step)))
        return True

    def came(self, stage: int, ready: Ready) -> bool:
        """Record a stage's report; return whether it repeated itself and may lack ours.

        Raises ValueError: turn_too_far, left_too_many, ready_unsigned, call_differs; nobody of the crew signed the number, which is new.
        """
        if ready.left > self.plan.local_steps + KEPT * self.plan.keep_after:
            raise ValueError("left_too_many")
        if any((it.stage, it.turn) == (stage, ready.turn) and it.step != ready.step for it in ready.waits):
            raise ValueError("call_differs")
        if not self._consistent(stage, ready):
            return False
        if ready.turn > self.roll.called:
            call = self.waiting.called(ready.turn, ready.waits)
            if call.stage == stage and ready.turn > self.roll.number + MOST_SKIPPED:  # who only follows may have been at a later meeting
                raise ValueError("turn_too_far")
            self.roll.call = call
        return self.roll.came(stage, ready)

    def _consistent(self, stage: int, ready: Ready) -> bool:
        """Return whether a stage has said nothing else at this meeting. Raises ValueError: ready_unsigned."""
        known, own = self.roll.said(stage, ready.turn), stage == self.company.stage
        differs = known is not None and differ(stage, known, ready)
        if known is not None and not differs and ready.signature == known.signature:
            return True
        if not own and not self.waiting.keys.verify(self.company.peers[stage], ready.signature, body(stage, ready)):
            raise ValueError("ready_unsigned")  # also of what it has said already: what is kept here is passed on
        if differs and self.seats.equivocated(stage):
            self.moment.tell(self.company, self.roll.minutes(ready.turn, self.company.stages))  # what was said here, which others may lack
        return not differs

    def minutes(self, frame: Minutes) -> None:
        """Compare what another stage has heard at a meeting; take what was not heard here. Raises ValueError: no honest one sends that."""
        if frame.turn != self.roll.number and not self.roll.concluded.at(frame.turn):
            return
        for said in frame.said:
            if said.stage >= self.company.stages or said.ready.crew != self.company.name or said.ready.turn != frame.turn:
                raise ValueError("minutes_of_another_meeting")
            known = self.roll.said(said.stage, said.ready.turn)
            if said.stage != self.company.stage and (known is None or differ(said.stage, known, said.ready)):
                self.came(said.stage, said.ready)  # else who passes it on would decide whether its stage repeated itself

    def interrupted(self) -> None:
        """Count the last call, once, for who made it."""
        roll = self.roll
        if roll.call is not None and roll.call.turn > roll.counted:
            roll.counted = roll.call.turn
            if not self.holding.rests:  # else another may have concluded our meeting, and there was nothing to do
                self.owed.costs.add(roll.call.stage)

    def back(self, stages: Collection[int]) -> None:
        """Count for those who were away, and are back, that work ended, as for the caller of a meeting.

        Who notices it first calls one now, and the others cannot know why.
        """
        for stage in stages:
            self.owed.costs.add(stage)
            self.seats.spare(stage)
        self.seats.free(self.owed.mute)

    @property
    def incomplete(self) -> bool:
        """Return whether this stage is at a meeting to which not all have come."""
        return self._calling

    def given(self, stage: int, piece: Piece) -> None:
        """Note that more of our state has come back: whoever sends it has a reason not to be at the meeting."""
        pieces = piece.offset // self.states.copies.piece_bytes + 1
        if piece.stage == self.company.stage and self.holding.got(pieces, self.moment.now):
            self.owed.put_off.end(stage)

    def done(self) -> None:
        """Note that a round's steps were done."""
        self.owed.round()
        self.rounds.done()

    def renamed(self) -> None:
        """The crew is another one."""
        self._fetched = ()
        self.seats.renamed()
        self.holding.due = None

    def forget(self) -> None:
        """Forget who was counted and freed: the stages are other peers', or they sit together again."""
        self.renamed()
        self.seats.forget()
        self.holding.clear()

    def _ready(self, number: int, round: int, left: int, *, evaluate: bool) -> Ready:
        """Return this stage's signed report for a meeting, with the word of who called it."""
        states, call = self.states, self.roll.call
        if call is None or call.turn != number:
            call = self.waiting.call(number, states.step)
        kept = {"points": states.points, "copies": states.copies.steps, "safe": states.safe, "batches": self.batches}
        word = structs.replace(self.roll.alive(states.step), turn=number, round=round, left=left, evaluate=evaluate, waits=(call,), **kept)
        return structs.replace(word, signature=self.waiting.keys.sign(body(self.company.stage, word)))

    def _whole(self, until: float) -> Flow[None]:
        repeat_at = self.moment.now + REPEAT_S
        while not self.company.whole and self.moment.now < until:
            if self.moment.now >= repeat_at:
                self.seats.tell()
                repeat_at = self.moment.now + REPEAT_S
            self._counted_at = self.moment.now
            self.moment.phase, self.moment.deadline = "lacking", min(until, repeat_at)
            yield None

    def _poll(self) -> Flow[None]:
        """List the existing states."""
        self.moment.phase, crew = "looking", self.company.crew
        self.states.used((yield UseState("carry" if self.carried else "look", crew)))
        self.moment.trouble = False
        if crew == self.company.crew:
            self.carried = False

    def _all(self, own: Ready, until: float) -> Flow[list[Ready] | None]:
        """Return what all stages have, in their order; None: there is another meeting, or another crew, or it is `until`."""
        company, roll, owed, moment = self.company, self.roll, self.owed, self.moment
        roll.own = own
        self.came(company.stage, own)
        owed.agree((stage, "ready") for stage in company.others)
        self.seats.free(owed.mute)
        repeat_at, over_at, count_at = moment.now, moment.now + TURN_S, moment.now + REPEAT_S
        while True:
            if not company.whole or company.name != own.crew or roll.called > own.turn or moment.now >= until:
                return None
            if moment.now >= repeat_at:
                moment.tell(company, own)
                repeat_at = moment.now + REPEAT_S
            here = roll.here(company.stages)
            if len(told := [ready for ready in here if ready is not None]) == company.stages:
                return told
            yield from self._restored()
            if self.states.points != own.points:
                return None  # what we said here no longer holds
            if moment.now >= count_at:
                self._wait_for([stage for stage, ready in enumerate(here) if ready is None])
                count_at = moment.now + REPEAT_S
            if moment.now >= over_at:
                owed.end_turn()
                self.seats.free(owed.mute)
                over_at = moment.now + TURN_S
            moment.phase, moment.deadline = "meeting", min(repeat_at, over_at, count_at, until)
            yield None

    def _later(self, round: int, told: Sequence[Ready]) -> int:
        """Return the round to do, `round` or a later one, and tell the owner if others are further and this stage does not follow."""
        company, rounds = self.company, [ready.round for ready in told]
        following = self.rounds.following(round, [rounds[stage] for stage in company.others], alone=company.alone)
        for stage in company.others:
            if rounds[stage] > following and (often := self._ahead.count(stage)):
                text = f"stage {stage} says that it is in round {rounds[stage]}, as nobody else does; this node goes on in {following}"
                text += f"; that was so {often} times" * (often > 1)
                self.moment.commands.append(Note("crew_ahead", text, "warning", {"stage": stage, "peer": company.peers[stage]}))
        return following

    def _came(self, conclusion: Start | Fetch | None, told: Sequence[Ready]) -> None:
        """End the counts of all but those who are why no steps follow. None: the meeting is about an evaluation."""
        self._count(())
        if conclusion is not None:
            for stage in self.holding.concluded([has(ready) for ready in told], conclusion, self.moment.now):
                self.owed.costs.add(self._cause(stage, told))
            self.seats.free(self.owed.mute)
        for stage in self.company.others:
            if stage not in self.holding.why:
                self.owed.put_off.end(stage)

    def _cause(self, stage: int, told: Sequence[Ready]) -> int:
        """Return the stage because of which one came in another state than agreed: itself, or who called it to this meeting too early."""
        ready, here = told[stage], told[self.company.stage].step
        try:
            call = self.waiting.called(ready.turn, ready.waits)
        except ValueError:
            return stage
        return stage if call.step >= here else call.stage

    def _wait_for(self, missing: Collection[int]) -> None:
        """Count a second for those who have not come, are not about to finish what they were to do, and have no state to give."""
        company, finishes = self.company, self.waiting.finishes
        here, giving = self.states.step, {(stage - 1) % company.stages for stage in self._fetched}  # whoever it is given to knows whether
        later = [stage for stage in missing if stage not in giving and not finishes(stage, here, self.plan.micro_batches, self.moment.now)]
        self._count(later)
        self.seats.free(self.owed.mute)

    def _count(self, missing: Collection[int]) -> None:
        """Count a second for those who have not come, and the time since the last count for those who are why no steps follow."""
        company, moment, holding = self.company, self.moment, self.holding
        since, self._counted_at = moment.now - self._counted_at, moment.now
        for stage in company.others:
            if stage not in holding.why and stage not in missing:
                continue
            why = holding.why.get(stage, "has not come to its crew's meeting")
            patience = max(TURN_S, self.slow_s, holding.coming_s if stage == self.states.before else 0.0)
            if self.owed.put_off.add(stage, patience, since if stage in holding.why else REPEAT_S):
                turns, fields = self.owed.put_off.turns[stage], {"stage": stage, "peer": company.peers[stage]}
                text = f"stage {stage} {why} for long, though it is heard; turn {turns} of {TURNS}"
                moment.commands.append(Note("crew_withheld", text, "warning", fields))

    def _restored(self) -> Flow[None]:
        """Adopt a state that was sent back."""
        answer = yield from self.states.take(self.company.crew, self.company.peers[self.states.before])
        self.moment.commands += [] if answer is None else [answer]

    def _fetch(self, fetch: Fetch) -> Flow[None]:
        """Give the copy that is here, or wait for ours, or for the others'."""
        company, roll, states, moment = self.company, self.roll, self.states, self.moment
        if (give := states.to_give(fetch, company.peers)) is not None:
            began = moment.now
            yield give
            self.slow_s = max(self.slow_s, moment.now - began)
            self.holding.gave()
        over_at = moment.now + FETCH_S
        while company.whole and roll.called <= roll.number and moment.now < over_at:
            yield from self._restored()
            if company.stage in fetch.stages and fetch.step in states.points:
                return
            moment.phase, moment.deadline = "fetching", over_at
            yield None
