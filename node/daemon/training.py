"""The training loop: local steps and exchanges, in one of two paces, until the rounds are done.

steps   a round is K local steps, then this round's exchanges with the neighbors that the overlay names, then Mix. A node that learns of a
        later round, after a suspension, a restart or a late join, jumps there; the others do not wait for it. Where rounds overlap, the
        local steps of the next run beside the exchanges, from the model before them.
sampled a node sleeps until it is its turn: it takes the newest model, or averages a sample's, does local steps or none, and publishes.
clock   the engine trains without pause; once a slot the node exchanges with the next of its edges. Slots are counted on the swarm clock.

Theory of operation: this file decides *when*; the exchange service does one round or one contact; the engine computes; membership says
who is here. An EngineError anywhere ends the current round only: the supervisor starts a new engine and the loop goes on.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import trio
from msgspec import structs

from starling.gossip.errors import EngineError
from starling.gossip.exchange.held_up import HeldUp
from starling.gossip.exchange.local_steps import LocalSteps
from starling.gossip.exchange.sampled import Due
from starling.gossip.exchange.swarm_clock import SwarmClock
from starling.gossip.overlay.api import LastingEdges, Overlay
from starling.gossip.overlay.stages import stage, turn
from starling.node.config.schema import PaceSection
from starling.node.daemon.context import NodeContext
from starling.node.daemon.crew.service import CrewService
from starling.node.daemon.engine.client import beside
from starling.node.daemon.engine.supervisor import EngineSupervisor
from starling.node.daemon.exchange.pull_service import PulledExchange
from starling.node.daemon.exchange.sampled_service import SampledExchange
from starling.node.daemon.exchange.service import Exchange
from starling.node.daemon.exchange.shell import RoundOutcome
from starling.node.daemon.membership.beacon import BeaconService
from starling.node.daemon.membership.neighbors import Members, Neighbors
from starling.node.daemon.membership.stop import StopService
from starling.node.daemon.progress import Progress, loss_told
from starling.node.daemon.state.transfer import SNAPSHOT_FRESH_S
from starling.node.rpc import calls
from starling.node.status import format as show
from starling.node.status.snapshot import EngineFigures

CLOCK_PATIENCE_S = 10.0  # for a peer that knows the swarm's time
FETCH_PAUSE_S = 10.0  # until claims that were not delivered are looked into again; doubles …
LONGEST_FETCH_PAUSE_S = 640.0  # … up to this
FEW = 0.5  # of the local steps of its rounds: a node that does less says so
FEW_ROUNDS = 20  # not before so many rounds
UNDONE_ROUNDS = 3  # without a single local step that was kept, one after the other: then a node says so
PARTED_ROUNDS = 8  # one after the other that this node began from another anchor than most others: then it takes theirs
STABLE_S = 0.5  # the member list must be unchanged for so long before round 0


@dataclass(slots=True)
class Training:
    """One node's training loop."""

    context: NodeContext
    engine: EngineSupervisor  # the context's, with its restarts
    members: Members
    overlay: Overlay
    neighbors: Neighbors
    order: BeaconService  # digest of the members and their order, which both ends of some exchanges must agree on
    exchange: Exchange | PulledExchange  # does a round's exchanges; in clock pace they are pairwise
    clock: SwarmClock
    progress: Progress
    fetch: Callable[[int, bool, Sequence[str]], Awaitable[int | None]]
    """A peer's model, if it is past the given round -> its round, or None; whether this node is live, with a model of its own to lose;
    peers at our round, to ask first."""
    may_meet: Callable[[str], bool] = lambda _peer: True
    """Whether this node and a member can have a connection; edges are for those."""
    stop: StopService | None = None  # the swarm's decision to stop early
    crew: CrewService | None = None  # with which local steps are done
    undone_rounds: int = 0  # one after the other in which all local steps were undone
    cannot_save: str = ""  # why the last attempt to save failed; "" if it succeeded
    edges: LastingEdges | None = None  # clock pace with sticky edges: the edges this node holds
    paused: str = ""
    """Why the owner wants no local steps, while exchanges go on at the swarm's speed; "": they are done."""
    _rest_s: float = 0.0  # while paused: what the local steps of a round would take; 0 until it is known
    _held_up: HeldUp = field(default_factory=HeldUp)
    _local_steps: LocalSteps = field(init=False)  # of the next round in steps pace
    _ahead: calls.Trained | None = (
        None  # of the round to do next, whose local steps ran beside the exchanges of the last
    )
    _repair_at: float = -math.inf  # not before, after an anchor that could not be fetched
    _parted: int = 0  # rounds, one after the other, as `PARTED_ROUNDS` counts them
    _together: tuple[str, ...] = ()  # in the last of these, those who have one anchor
    _due: int = 0  # local steps of all rounds since the start, those jumped over included
    _fetch_at: float = -math.inf  # not before, after claims for which nobody had a model to show
    _fetch_pause_s: float = FETCH_PAUSE_S
    _began: float = field(default_factory=trio.current_time)
    _saved_at: float = -math.inf  # so that the first round is saved at once, and a node that dies early resumes too

    def __post_init__(self) -> None:
        self._local_steps = LocalSteps(self.pace.local_steps)

    @property
    def pace(self) -> PaceSection:
        """The manifest's."""
        return self.context.manifest.pace

    @property
    def stopped_early(self) -> bool:
        """The swarm has agreed to stop, whatever rounds are left."""
        return self.stop is not None and self.stop.agreed()

    @property
    def patience(self) -> int:
        """Rounds that a node may lag and still go on with its own model."""
        return self.pace.ramp_rounds

    def pause(self, why: str) -> None:
        """Do no local steps from the next round (slot) on, for the reason given, or with "" do them again.

        In steps pace the first round of a process is done in any case: how long it takes is how long later ones are waited out.
        """
        if bool(why) != bool(self.paused):
            self.paused, self._rest_s = why, self._round_s() if why else 0.0
            if isinstance(self.exchange, SampledExchange):
                self.exchange.resting, self._rest_s = bool(why), 0.0
            report, now = self.context.report, self.progress.round
            if why:
                report.event("paused", f"no local steps, as {why}; exchanges go on", round=now, why=why)
            else:
                report.event("resumed", "local steps go on", round=now)

    def _round_s(self) -> float:
        rate = self.progress.speed.per_busy_s()
        return self.pace.local_steps / rate if rate else 0.0

    @property
    def whom(self) -> str:
        """What `members` are, for people."""
        return "members" if self.crew is None else "whole crews"

    async def quorum(self, *, begun: bool) -> None:
        """Wait until enough members are here and their list is stable; a node whose training has begun goes on alone."""
        needed = 1 if begun else self.pace.quorum
        self.progress.enter("waiting")
        announced = False
        view, since = self.members.view, trio.current_time()
        while True:
            now = trio.current_time()
            if self.members.view != view:
                view, since = self.members.view, now
            if len(self.members.members) >= needed and (needed == 1 or now - since >= STABLE_S):
                break
            if not announced:
                text = f"waiting for {needed} {self.whom} before the first round"
                self.context.report.event("waiting_for_quorum", text)
                announced = True
            await trio.sleep(0.05)
        if self.pace.kind == "clock":
            await self._synchronise()

    async def _synchronise(self) -> None:
        """Slots are counted from the quorum: the member with the lowest id starts the swarm clock, the others adopt it."""
        give_up_at = trio.current_time() + CLOCK_PATIENCE_S
        while self.clock.time(trio.current_time()) < 0.0:
            if self.context.me == min(self.members.members) or trio.current_time() >= give_up_at:
                self.clock.patience_s = 0.0
            else:
                await trio.sleep(0.05)

    async def run(self, start_round: int) -> None:
        """Train from `start_round` until the manifest's rounds are done (for ever if 0)."""
        self.progress.round = start_round
        self.progress.speed.add(trio.current_time(), self.progress.figures.local_steps, self.progress.computed.seconds)
        self.progress.enter("training")
        if self.pace.kind == "steps":
            await self._steps(start_round)
        elif self.pace.kind == "sampled":
            await self._sampled(start_round)
        else:
            await self._slots(start_round)
        while self.progress.value_round != self.progress.round:
            try:
                await self.evaluate()
            except EngineError as error:
                await self.recover(error)
            await trio.sleep(0.01)  # an evaluation on the owner's command may be in progress

    async def _steps(self, start: int) -> None:
        pace, current = self.pace, start
        while (pace.rounds == 0 or current < pace.rounds) and not self.stopped_early:
            try:
                began = trio.current_time()
                outcome = await self._one_round(current)
                current = outcome.round
                elapsed_s = trio.current_time() - began
                self._held_up.ended(elapsed_s, outcome.waited_s)
                was_away = self._held_up.reach > 0
                following = await self._jump(current, self._ahead_of(current, outcome.behind))
                if not was_away:  # which is not being slow
                    self._local_steps.passed(following - current, elapsed_s, outcome.waited_s)
                self._count(following - current - 1)
                self.progress.round = current = following
            except EngineError as error:
                await self.recover(error)

    async def _one_round(self, due: int) -> RoundOutcome:
        pace = self.pace
        self.progress.current = due
        trained, self._ahead = self._ahead, None
        if trained is None:
            self.exchange.computing(due, self.neighbors.weights(due), self.order.digest(due))
            trained = await self._train(self._grant(due))
        done = due if self.crew is None else trained.round  # where mates are
        self.progress.current = done
        self._update(structs.replace(trained, round=done))
        evaluates = (done + 1) % pace.evaluate_every == 0 or done + 1 == pace.rounds
        if evaluates and self.context.config.evaluate_alone:
            outcome = await self._exchange_beside_evaluation(done)
        else:
            outcome = await self._exchange(done)
        self._measure(structs.replace(trained.figures, loss=None, distance=outcome.distance))
        if evaluates:
            await self.evaluate()
        await self._save_when_due()
        self._parted, self._together = (self._parted + 1 if outcome.parted else 0), outcome.parted
        return outcome

    async def _train(self, grant: calls.Train) -> calls.Trained:
        if self._rest_s:
            await trio.sleep(self._rest_s)  # or the others would be waited for, as if they were late
        if self.crew is not None:
            grant = structs.replace(grant, round=await self.crew.steps(grant.round, grant.steps))
        trained = await self.engine.call(grant)
        assert isinstance(trained, calls.Trained), trained
        return trained

    async def _exchange(self, round: int) -> RoundOutcome:
        """The round's exchanges and Mix."""
        pace = self.pace
        if pace.overlap and (pace.rounds == 0 or round + 1 < pace.rounds):
            return await self._exchange_beside_training(round)
        return await self.exchange.round(round, self.neighbors.weights(round), self.order.digest(round))

    async def _exchange_beside_evaluation(self, round: int) -> RoundOutcome:
        """The same, and meanwhile the evaluation of the model as it is before Mix, which the engine copies first."""
        done = trio.Event()
        self.progress.alone = None

        async def evaluate() -> None:
            with suppress(EngineError):  # the exchange meets it too
                evaluated = await self.engine.call(calls.Evaluate(round + 1, keep=False))
                if isinstance(evaluated, calls.Evaluated) and math.isfinite(evaluated.value):
                    self.progress.alone = evaluated.value
            done.set()

        async with beside(evaluate):
            outcome = await self._exchange(round)
            await done.wait()
        return outcome

    async def _exchange_beside_training(self, round: int) -> RoundOutcome:
        """The round's exchanges while the local steps of the next are done, then Mix. The round after it begins with its exchanges."""
        exchange, following, since = self.exchange, round + 1, trio.current_time()
        assert isinstance(exchange, Exchange), "the manifest check allows no pulled exchanges to overlap"
        grant = structs.replace(self._grant(following), ahead=True)
        lost, done = list[EngineError](), trio.Event()

        async def train() -> None:
            try:
                self._ahead = await self._train(grant)
            except EngineError as error:
                lost.append(error)
            done.set()

        async def trained() -> None:
            exchange.computing(following, self.neighbors.weights(following), self.order.digest(following), since)
            await done.wait()
            if lost:
                raise lost[0]

        async with beside(train):
            links, view = self.neighbors.weights(round), self.order.digest(round)
            return await exchange.round(round, links, view, trained, self._round_s())

    def _grant(self, round: int) -> calls.Train:
        """The round's local steps, none where it belongs to a sweep of averaging or its owner wants none."""
        if self.paused and not self._rest_s:
            self._rest_s = self._round_s()
        n = len(self.members.roster)
        now = stage(self.overlay, n, round)
        local = now.local and not self._rest_s
        steps = self._local_steps.now if local else 0
        self._due += self.pace.local_steps if local else 0
        return calls.Train(round, steps, now.first, now.last, turn(self.overlay, n, round))

    def _ahead_of(self, current: int, behind: int) -> int:
        """The round that peers have reached, as the round's exchanges say, or further if this node was held up."""
        if not self._held_up.reach or not isinstance(self.exchange, Exchange):
            return behind
        return max(behind, self.exchange.left_behind(current, self._held_up.reach))

    async def _jump(self, current: int, ahead: int) -> int:
        """The round after `current`, given that peers are at `ahead`; a long jump needs a model of theirs.

        Unless this node was held up, and with it so many that too few have such a model: then it goes there with its own, which is no older
        than that of most. The round is then `ahead`, however long the download took: a node that fetched again until no peer was ahead
        might never begin.
        """
        following, last = current + 1, self.pace.rounds
        far = following + self.patience
        if ahead > far:
            if trio.current_time() < self._fetch_at:
                return following
            fetched, reach = await self.catch_up(following, far, live=True) > far, self._held_up.reach
            self._held_up.caught_up()
            if not fetched and ahead > current + reach:  # too few have a model of that round
                self._fetch_at = trio.current_time() + self._fetch_pause_s
                self._fetch_pause_s = min(2.0 * self._fetch_pause_s, LONGEST_FETCH_PAUSE_S)
                return following
            self._fetch_pause_s = FETCH_PAUSE_S
        elif self._parted >= PARTED_ROUNDS and trio.current_time() >= self._repair_at:
            self._parted = 0  # if too few have another anchor by now, the next rounds tell
            text = f"other members begin their rounds from one anchor and this node from another, for {PARTED_ROUNDS} rounds; it is fetched"
            self.context.report.event("anchor_parted", text, level="warning", round=following)
            following = max(following, await self.catch_up(following, current, live=True, first=self._together))
            # sooner, some might offer an old snapshot again, each one its own
            self._repair_at = trio.current_time() + SNAPSHOT_FRESH_S
            return following
        return max(following, min(ahead, last) if last else ahead)

    def _count(self, skipped: int) -> None:
        """Count the local steps of rounds jumped over, and say once that this node did few of those it was to do."""
        self._due += 0 if self.paused else skipped * self.pace.local_steps
        done = self.progress.computed.steps
        few = done < FEW * self._due and self._due >= FEW_ROUNDS * self.pace.local_steps and not self.progress.halted
        text = f"{done} of {self._due} local steps done: others left this node behind, or said so"
        if few and not self.progress.few_steps:
            self.context.report.event("few_steps", text, level="warning", done=done, due=self._due)
        self.progress.few_steps = text if few else ""

    async def catch_up(self, round: int, newer_than: int, *, live: bool = False, first: Sequence[str] = ()) -> int:
        """Replace a stale model by a peer's, if that is past `newer_than`, and delete every flow. -> its round, else `round`

        `live`: this node has trained, and needs more voices than its own for it; `first`: peers at our round, to ask before others.
        """
        fetched = await self.fetch(newer_than, live, first)
        if fetched is None:
            return round
        await self.exchange.reset_all()
        self.progress.round, self._ahead = fetched, None
        return fetched

    async def _sampled(self, start: int) -> None:
        exchange = self.exchange
        assert isinstance(exchange, SampledExchange), "it was made for this pace"
        while True:
            try:
                await exchange.begin(start)
                break
            except EngineError as error:
                await self.recover(error)
        while True:
            due = await exchange.due()
            try:
                if await self._turn(exchange, due):
                    return
            except EngineError as error:
                exchange.give_up(due)
                await self.recover(error)

    async def _turn(self, exchange: SampledExchange, due: Due) -> bool:
        """Do a turn. -> whether it was the last one"""
        sampling, progress, pace = exchange.sampling, self.progress, self.pace
        current = sampling.round(due.turn)
        progress.current = min(current, pace.rounds - 1) if pace.rounds else current
        if due.sources and not await exchange.take(due):
            return False
        if due.last:
            progress.round = pace.rounds
            if not due.sources:
                text = "nobody had the model of the last round; this node keeps the newest that it had"
                self.context.report.event("last_model_missed", text, level="warning", round=progress.round)
            exchange.finish()
            return True
        trains = sampling.trains(due.turn)
        done = current if trains else current + 1  # rounds that have been averaged
        progress.round = done
        evaluates = done > 0 and done % pace.evaluate_every == 0
        if evaluates and trains and not sampling.aggregators:
            await self.evaluate()
        trained = await self._train(self._grant(current) if trains and not due.again else calls.Train(current, 0))
        self._update(trained, done - 1)
        await exchange.publish(due.turn)
        if evaluates and not trains:
            await self.evaluate()
        await self._save_when_due()
        return False

    async def _slots(self, start: int) -> None:
        pace, exchange = self.pace, self.exchange
        assert isinstance(exchange, Exchange), "the manifest check allows no pulled exchanges in clock pace"
        edges = exchange.sticky
        assert edges is not None, "they were made for clock pace"
        self.edges = edges if self.context.manifest.overlay.kind == "sticky" else None
        slot = start
        while (pace.rounds == 0 or slot < pace.rounds) and not self.stopped_early:
            try:
                self.progress.current = slot
                trained = await self.engine.call(calls.Free(on=not self.paused, round=slot))
                assert isinstance(trained, calls.Trained), trained
                self._update(trained, slot)
                with trio.move_on_after(exchange.longest_s):
                    await self._contact(exchange, edges, slot)
                if (slot + 1) % pace.evaluate_every == 0:
                    await self.evaluate()
                await self._save_when_due()
            except EngineError as error:
                await self.recover(error)
            await trio.sleep_until(self.clock.next_slot_at(trio.current_time(), pace.slot_s))
            slot = max(slot + 1, self.clock.slot(trio.current_time(), pace.slot_s))
        await self.engine.call(calls.Free(on=False, round=slot))

    async def _contact(self, exchange: Exchange, edges: LastingEdges, slot: int) -> None:
        """One contact: the next of our edges, or this slot's partners where the overlay is a schedule."""
        if self.context.manifest.overlay.kind == "sticky":
            members = tuple(filter(self.may_meet, self.members.roster))
            _opened, closed = edges.update(self.context.me, members)
            for peer in closed:
                await exchange.settle(peer)
            await exchange.contact_next(edges.visits(slot), slot)
            return
        for peer in self.neighbors.weights(slot):
            await exchange.contact(peer, slot)

    async def recover(self, error: EngineError) -> None:
        """The engine is lost: report it and wait for the next one."""
        self._ahead = None
        self.context.report.event("engine_lost", str(error), level="warning", round=self.progress.round)
        await self.engine.ready()

    async def evaluate(self) -> None:
        """Evaluate the model on held-out data."""
        if self.crew is None:
            evaluated: calls.Reply | None = await self.engine.call(calls.Evaluate(self.progress.round))
        else:
            evaluated = await self.crew.evaluate(self.progress.round, self.pace.local_steps)
            self.progress.value_round = self.progress.round  # also where the crew was about something else
        if isinstance(evaluated, calls.Refused) and evaluated.kind == "config":
            self.progress.value_round = self.progress.round
            self.context.report.event("not_evaluated", evaluated.reason, level="error", round=self.progress.round)
        if isinstance(evaluated, calls.Evaluated):
            progress, opened = self.progress, self.engine.opened
            done, metric = progress.round, opened.metric if opened is not None else "value"
            progress.value, progress.value_round = evaluated.value, done
            progress.best, progress.best_round = evaluated.best, evaluated.best_round
            progress.others = tuple(evaluated.others.items())
            progress.values.add(done, self._elapsed(), evaluated.value)
            if self.stop is not None:
                self.stop.evaluated(done, evaluated.value)
            level, doubt = loss_told(evaluated.loss)
            self.context.report.event(
                "evaluated", f"{metric} {evaluated.value:.4g}{show.others(progress.others)} after round {done}{doubt}", level=level,
                round=done, metric=metric, value=evaluated.value, loss=evaluated.loss, samples=evaluated.samples, alone=progress.alone,
                others=evaluated.others,
            )  # fmt: skip

    async def save(self, export: str = "") -> None:
        """Write the checkpoint and, if `export` is a path, the model; a failure is reported once and stays in `cannot_save`."""
        self._saved_at = trio.current_time()
        try:
            done = await self.engine.call(calls.Save(export))
            reason = done.reason if isinstance(done, calls.Refused) else ""
        except EngineError as error:
            reason = str(error)
        if reason and not self.cannot_save:
            self.context.report.event("cannot_save", reason, level="error")
        elif self.cannot_save and not reason:
            self.context.report.event("saves_again", "checkpoints can be written again")
        self.cannot_save = reason

    async def _save_when_due(self) -> None:
        if trio.current_time() - self._saved_at >= self.context.config.checkpoint_s:
            await self.save()

    def _update(self, trained: calls.Trained, round: int | None = None) -> None:
        progress = self.progress
        steps = trained.figures.local_steps - progress.figures.local_steps
        progress.round = (trained.round if round is None else round) + 1
        progress.computed.add(max(0, steps), trained.seconds)
        progress.speed.add(trio.current_time(), trained.figures.local_steps, progress.computed.seconds)
        self._measure(trained.figures)
        if steps:
            self.undone_rounds = self.undone_rounds + 1 if trained.undone >= steps else 0
        if self.undone_rounds == UNDONE_ROUNDS:
            text = f"all local steps of {UNDONE_ROUNDS} rounds were undone: loss, gradient or model was not finite"
            self.context.report.event("steps_undone", text, level="error", round=progress.round)
        if trained.halted and trained.halted != progress.halted:
            text = (
                f"this node's data are no longer used for training: {trained.halted}; it still takes part in exchanges"
            )
            self.context.report.event("data_at_rest", text, level="warning", round=progress.round)
        progress.halted = trained.halted
        for note in trained.notes:
            self.context.report.event("numerics_changed", note, level="warning", round=progress.round)

    def _measure(self, figures: EngineFigures) -> None:
        progress = self.progress
        progress.measured(figures)
        for curve, value in ((progress.losses, figures.loss), (progress.distances, figures.distance)):
            if value is not None:
                curve.add(progress.round, self._elapsed(), value)

    def _elapsed(self) -> float:
        return trio.current_time() - self._began
