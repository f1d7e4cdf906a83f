"""Meetings of a crew, as one of its stages takes part: until all have reported their states, and know from which to continue."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from starling.gossip.pipeline.company import Company, Flow, Moment
from starling.gossip.pipeline.crew_commands import Abandon, Blame, FreeStage, Note, Send, Unfollow, UseState
from starling.gossip.pipeline.crew_states import StageStates, notes
from starling.gossip.pipeline.crew_step import Plan
from starling.gossip.pipeline.holding import Holding
from starling.gossip.pipeline.later_rounds import LaterRounds
from starling.gossip.pipeline.meeting import KEPT, Fetch, Start, agree
from starling.gossip.pipeline.owed import TURN_S, TURNS, Owed
from starling.gossip.pipeline.roll import Roll, has
from starling.gossip.pipeline.waiting import Waiting
from starling.gossip.wire.schema import Piece, Ready

VOICES = 2  # number of stages that must free a seat before its holder's score is charged: one of them may be deaf, or lie
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
    holding: Holding
    plan: Plan
    batches: int  # held-out batches at stage 0
    rounds: LaterRounds = field(default_factory=LaterRounds)
    slow_s: float = 0.0  # seconds of the longest of this stage's fastest step, its last time between rounds' steps, and what it gave since
    open: bool = False
    _calling: bool = False  # our Ready is repeated anyway, so it is not sent in answer
    freed: set[str] = field(default_factory=set)  # peers of this crew
    _named: dict[int, set[int]] = field(default_factory=dict)  # stage -> others that free its seat
    _charged: set[int] = field(default_factory=set)  # or spared
    _followed: set[str] = field(default_factory=set)  # peers on whose word alone a seat was freed
    carried: bool = False  # our states are valid in the current crew
    _fetched: tuple[int, ...] = ()  # stages that are given their states, by the last conclusion
    _counted_at: float = 0.0  # up to when the stages of `holding` were waited for

    def agreed(self, round: int, left: int, until: float, *, evaluate: bool) -> Flow[tuple[int, Start] | None]:
        """Meet until all know from where to continue -> the round to do, and that; None: we evaluate and others do not, or it is `until`."""
        self.open = True
        try:
            while True:
                yield from self._whole(until)
                if not self.company.whole:
                    return None
                yield from self._poll()
                number, self._calling = self.roll.open(), True
                told = yield from self._all(self._ready(number, round, left, evaluate=evaluate), until)
                self._calling = False
                if told is None:
                    if self.moment.now >= until:
                        return None
                    continue
                conclusion = agree([has(ready) for ready in told], self.plan.keep_after, self.plan.local_steps)
                self._came(None if evaluate else conclusion, told)
                if len({ready.evaluate for ready in told}) > 1:
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
        if start.keep and start.step not in states.points:
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
        if again and not self._calling and roll.own is not None and roll.own.turn == ready.turn:
            self.moment.commands.append(Send(peer, structs.replace(roll.own, answers=True)))  # it has not received our Ready
        if ready.turn == roll.number:
            return False
        if busy or not self.open:
            self.moment.commands.append(Send(peer, self._ready(0, 0, 0, evaluate=False)))
        return True

    def came(self, stage: int, ready: Ready) -> bool:
        """Record a stage's report; return whether it repeated itself and may lack ours.

        Raises ValueError: turn_too_far, left_too_many; nobody of the crew signed the number, which is new.
        """
        if ready.left > self.plan.local_steps + KEPT * self.plan.keep_after:
            raise ValueError("left_too_many")
        call = self.roll.call if ready.turn <= self.roll.called else self.waiting.called(ready.turn, ready.waits)
        again = self.roll.came(stage, ready)
        self.roll.call = call
        return again

    def interrupted(self) -> None:
        """Count the last call, once, for who made it."""
        roll = self.roll
        if roll.call is not None and roll.call.turn > roll.counted:
            roll.counted = roll.call.turn
            if not self.holding.rests:  # else another may have concluded our meeting, and there was nothing to do
                self.owed.costs.add(roll.call.stage)

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
        self._named.clear()
        self._charged.clear()
        self.holding.due = None

    def forget(self) -> None:
        """Forget who was counted and freed: the stages are other peers', or they sit together again."""
        self.renamed()
        self.freed.clear()
        self.holding.clear()

    def named(self, stage: int, ready: Ready) -> None:
        """Note whose seats a stage frees; if ours, do not go where it goes. Raises ValueError: no_such_stage."""
        if any(other >= self.company.stages or other == stage for other in ready.freed):
            raise ValueError("no_such_stage")
        peer = self.company.peers[stage]
        if self.company.stage in ready.freed:
            self.moment.commands.append(Unfollow(peer))
        for other in set(ready.freed) - {self.company.stage}:
            self._named.setdefault(other, set()).add(stage)
        self._charge()

    def follow(self, left: Collection[str]) -> None:
        """Continue with those who have `left`: free the stages that they free, if we have counted a turn too, or once on one report.

        Of two that free each other all follow the one of the lower stage, so that the others stay together.
        """
        peers, owed = self.company.peers, self.owed.arrears
        for stage, named in sorted(self._named.items()):
            voices = {voice for voice in named if peers[voice] in left and peers[voice] not in self._followed}
            if peers[stage] in left:
                voices = {voice for voice in voices if voice < stage and stage in self._named.get(voice, ())}
            if stage not in owed and peers[stage] not in self.freed and voices:
                self._followed |= {peers[voice] for voice in voices}
                self.free((stage,))
        self.free(stage for stage in owed if peers[stage] not in left)

    def free(self, stages: Iterable[int]) -> None:
        """Free the seats of stages that are in arrears."""
        for stage in stages:
            peer = self.company.peers[stage]
            if peer in self.freed:
                continue
            self.freed.add(peer)
            seen = stage in self.owed.arrears
            why = f"in {self.owed.count(stage)} turns in which it owed something" if seen else "as a stage says that left it"
            text = f"stage {stage} has sent nothing of use {why}; the other stages go on without it"
            fields = {"stage": stage, "peer": peer}
            self.moment.commands += [Note("crew_mute", text, "warning", fields), FreeStage(peer)]
            if seen:
                self._named.setdefault(stage, set()).add(self.company.stage)
            if self.owed.put_off.turns.get(stage, 0) >= TURNS:
                self._charged.add(stage)  # never: its owner may have a reason
            self._tell_freed()
        self._charge()

    def _tell_freed(self) -> None:
        """Name the stages whose seats we have freed, as long as the crew is not whole: a frame may be lost.

        Those that another stage named are only told themselves, so that they do not come after us.
        """
        company, word = self.company, self._ready(0, 0, 0, evaluate=False)
        seen = {stage for stage, voices in self._named.items() if company.stage in voices}
        for stage, peer in enumerate(company.peers):
            freed = seen | {stage} if peer in self.freed else seen
            if stage != company.stage and freed:
                self.moment.commands.append(Send(peer, structs.replace(word, freed=tuple(sorted(freed)))))

    def _charge(self) -> None:
        """Blame those of whose arrears enough stages say, we among them."""
        for stage, voices in sorted(self._named.items()):
            if len(voices) >= VOICES and self.company.stage in voices and stage not in self._charged:
                self._charged.add(stage)
                self.moment.commands.append(Blame(self.company.peers[stage], "crew_mute"))

    def _ready(self, number: int, round: int, left: int, *, evaluate: bool) -> Ready:
        states, call = self.states, self.roll.call
        if number and (call is None or call.turn != number):
            call = self.waiting.call(number, states.step)
        word = Ready(
            self.company.name, number, round, states.step, left, evaluate, states.points, states.copies.steps, states.safe, self.batches
        )
        return structs.replace(word, waits=(call,)) if number and call is not None else word

    def _whole(self, until: float) -> Flow[None]:
        repeat_at = self.moment.now + REPEAT_S
        while not self.company.whole and self.moment.now < until:
            if self.moment.now >= repeat_at:
                self._tell_freed()
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
        self.free(owed.mute)
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
                self.free(owed.mute)
                over_at = moment.now + TURN_S
            moment.phase, moment.deadline = "meeting", min(repeat_at, over_at, count_at, until)
            yield None

    def _later(self, round: int, told: Sequence[Ready]) -> int:
        """Return the round to do, `round` or a later one, and tell the owner if others are further and this stage does not follow."""
        company, rounds = self.company, [ready.round for ready in told]
        following = self.rounds.following(round, [rounds[stage] for stage in company.others], alone=company.alone)
        for stage in company.others:
            if rounds[stage] > following:
                text = f"stage {stage} says that it is in round {rounds[stage]}, and nobody else says so; this node goes on in {following}"
                self.moment.commands.append(Note("crew_ahead", text, "warning", {"stage": stage, "peer": company.peers[stage]}))
        return following

    def _came(self, conclusion: Start | Fetch | None, told: Sequence[Ready]) -> None:
        """End the counts of all but those who are why no steps follow. None: the meeting is about an evaluation."""
        self._count(())
        if conclusion is not None:
            for stage in self.holding.concluded([has(ready) for ready in told], conclusion, self.moment.now):
                self.owed.costs.add(self._cause(stage, told))
            self.free(self.owed.mute)
        for stage in self.company.others:
            if stage not in self.holding.why:
                self.owed.put_off.end(stage)

    def _cause(self, stage: int, told: Sequence[Ready]) -> int:
        """Return the stage because of which one came in another state than agreed: itself, or who called it to this meeting too early."""
        ready, here = told[stage], told[self.company.stage].step
        call = next((waits for waits in ready.waits if waits.turn == ready.turn), None)
        return stage if call is None or call.step >= here else call.stage

    def _wait_for(self, missing: Collection[int]) -> None:
        """Count a second for those who have not come, are not about to finish what they were to do, and have no state to give."""
        company, finishes = self.company, self.waiting.finishes
        here, giving = self.states.step, {(stage - 1) % company.stages for stage in self._fetched}  # whoever it is given to knows whether
        later = [stage for stage in missing if stage not in giving and not finishes(stage, here, self.plan.micro_batches, self.moment.now)]
        self._count(later)
        self.free(self.owed.mute)

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
