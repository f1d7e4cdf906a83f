"""The node's run: local steps and exchanges, in one of two paces, until the rounds are done.

steps   a round is K local steps, then this round's exchanges with whom the overlay names, then Mix. A node that hears of a later
        round (it was suspended, restarted or joined late) jumps there; nobody waits for it.
clock   the engine trains without pause; once a slot the node meets the next of its edges. Slots are counted on the swarm clock.

Theory of operation: this file decides *when*; `exchange` does one round or one contact; `engine` computes; `membership` says who is
there. An EngineError anywhere ends the current round only: the supervisor brings a new engine up and the loop goes on.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import trio

from starling.gossip.api import Overlay
from starling.gossip.errors import EngineError
from starling.gossip.exchange.swarm_clock import SwarmClock
from starling.gossip.overlay.periodic import stage, turn
from starling.gossip.overlay.sticky import StickyEdges
from starling.node.config.schema import Manifest
from starling.node.daemon.engine.supervisor import EngineSupervisor
from starling.node.daemon.events import Rate
from starling.node.daemon.exchange.api import Meetings
from starling.node.daemon.exchange.service import Exchange
from starling.node.interfaces import Reporter
from starling.node.rpc import calls
from starling.node.status.curve import Curve

CLOCK_PATIENCE_S = 10.0  # for hearing the swarm's time from anybody
RECOVERY_ROUNDS = 10  # in which a node that was late and keeps up comes back to all of its local steps
STABLE_S = 0.5  # the member list must stand still for so long before round 0

State = Literal["starting", "joining", "training", "waiting", "finished", "leaving", "failed"]


class Members(Protocol):
    """What training needs of the membership service."""

    @property
    def members(self) -> tuple[str, ...]:
        """Everybody believed alive, this node included, sorted."""
        ...

    @property
    def view(self) -> bytes:
        """Digest of `members`."""
        ...


@dataclass(slots=True)
class Computed:
    """What this start of the node has computed itself: not what a checkpoint or a peer's model brought along, nor rounds jumped over."""

    rounds: int = 0
    steps: int = 0
    seconds: float = 0.0
    """In local steps."""

    def add(self, steps: int, seconds: float) -> None:
        """A round's local steps are done."""
        self.rounds += 1
        self.steps += steps
        self.seconds += seconds


@dataclass(slots=True)
class Progress:
    """How far this node is: written by training, read for the status."""

    state: State = "starting"
    round: int = 0
    """Rounds (slots) done."""
    local_steps: int = 0
    loss: float | None = None
    value: float | None = None
    value_round: int | None = None
    steps_per_s: float | None = None
    computed: Computed = field(default_factory=Computed)
    epsilon: float | None = None
    halted: str = ""
    """Why nothing is learned from this node's data any more."""
    losses: Curve = field(default_factory=Curve)
    values: Curve = field(default_factory=Curve)
    under_way: int | None = None
    """The round (slot) under way; None before the first."""
    distance: float | None = None
    distances: Curve = field(default_factory=Curve)
    paced: Rate = field(default_factory=Rate)
    """Local steps, waiting included."""
    gpu: float | None = None
    gpu_memory_bytes: int | None = None
    changed: Callable[[], object] = lambda: None
    """Called when the state has changed."""

    def enter(self, state: State) -> None:
        """The node is in another state."""
        self.state = state
        self.changed()


class Training:
    """One node's run.

    Args:
        me: own peer id.
        manifest: the swarm's agreement.
        salt: mixes into the rings of clock pace: swarm id bytes.
        overlay: built from the manifest.
        partners: whom we meet in a round, with which weight.
        view: digest of what they come from, which must be the same at both ends.
        engine, exchange, membership: the services; in clock pace exchanges are pairwise.
        clock: the swarm clock, fed by membership.
        progress: where to write how far we are.
        checkpoint_s: seconds between checkpoints.
        fetch: takes over a peer's model if it is past the given round -> its round, or None.
    """

    def __init__(
        self, *, me: str, manifest: Manifest, salt: bytes, overlay: Overlay, partners: Callable[[int], Mapping[str, float]],
        view: Callable[[int], bytes], engine: EngineSupervisor, exchange: Meetings, membership: Members, clock: SwarmClock,
        progress: Progress, report: Reporter, checkpoint_s: float, fetch: Callable[[int], Awaitable[int | None]],
    ) -> None:  # fmt: skip
        self._me = me
        self._manifest = manifest
        self._salt = salt
        self._overlay = overlay
        self._partners = partners
        self._view = view
        self._engine = engine
        self._exchange = exchange
        self._membership = membership
        self._clock = clock
        self._progress = progress
        self._report = report
        self._checkpoint_s = checkpoint_s
        self._fetch = fetch
        self._local_steps = manifest.pace.local_steps  # of the next round in steps pace
        self._began = trio.current_time()
        self._saved_at = -math.inf  # so the first round is kept at once: whoever dies early can resume as well
        self.cannot_save = ""
        """Why the last attempt to save failed; "" if it succeeded."""
        self.edges: StickyEdges | None = None
        """Clock pace with sticky edges: those we hold."""

    async def quorum(self, *, begun: bool) -> None:
        """Wait until enough members are there and their list stands still; once training has begun a lone node goes on."""
        needed = 1 if begun else self._manifest.pace.quorum
        self._progress.enter("waiting")
        said = False
        view, since = self._membership.view, trio.current_time()
        while True:
            now = trio.current_time()
            if self._membership.view != view:
                view, since = self._membership.view, now
            if len(self._membership.members) >= needed and (needed == 1 or now - since >= STABLE_S):
                break
            if not said:
                self._report.event("waiting_for_quorum", f"waiting for {needed} members before the first round")
                said = True
            await trio.sleep(0.05)
        if self._manifest.pace.kind == "clock":
            await self._synchronise()

    async def _synchronise(self) -> None:
        """Slots are counted from the quorum: the member with the lowest id begins the swarm clock, the others take it over."""
        give_up_at = trio.current_time() + CLOCK_PATIENCE_S
        while self._clock.time(trio.current_time()) < 0.0:
            if self._me == min(self._membership.members) or trio.current_time() >= give_up_at:
                self._clock.patience_s = 0.0
            else:
                await trio.sleep(0.05)

    async def run(self, start_round: int) -> None:
        """Train from `start_round` until the manifest's rounds are done (for ever if 0)."""
        self._progress.round = start_round
        self._progress.paced.note(trio.current_time(), self._progress.local_steps)
        self._progress.enter("training")
        if self._manifest.pace.kind == "steps":
            await self._steps(start_round)
        else:
            await self._slots(start_round)
        while self._progress.value_round != self._progress.round:
            try:
                await self.evaluate()
            except EngineError as error:
                await self.recover(error)
            await trio.sleep(0.01)  # somebody else's evaluation may be under way

    # --- steps pace ---------------------------------------------------------------------------------------

    async def _steps(self, start: int) -> None:
        pace, current = self._manifest.pace, start
        while pace.rounds == 0 or current < pace.rounds:
            try:
                ahead = await self._one_round(current)
                following = await self._jump(current, ahead)
                self._fit(following - current)
                self._progress.round = current = following
            except EngineError as error:
                await self.recover(error)

    async def _one_round(self, round: int) -> int:
        pace = self._manifest.pace
        self._progress.under_way = round
        self._exchange.computing(round, self._partners(round), self._view(round))
        trained = await self._engine.call(self._grant(round))
        assert isinstance(trained, calls.Trained), trained
        self._note(trained)
        outcome = await self._exchange.round(round, self._partners(round), self._view(round))
        self._measured(outcome.distance)
        if (round + 1) % pace.evaluate_every == 0 or round + 1 == pace.rounds:
            await self.evaluate()
        await self._save_when_due()
        return outcome.behind

    def _grant(self, round: int) -> calls.Train:
        """The round's local steps, none where it belongs to a sweep of averaging."""
        n = len(self._membership.members)
        now = stage(self._overlay, n, round)
        steps = self._local_steps if now.local else 0
        return calls.Train(round, steps, now.first, now.last, turn(self._overlay, n, round))

    async def _jump(self, current: int, ahead: int) -> int:
        """The round after `current`, given that peers are at `ahead`: a long jump only with a model of theirs.

        However long its download took, the round is then `ahead`: whoever fetched again until nobody was ahead might never begin.
        """
        following, last = current + 1, self._manifest.pace.rounds
        far = following + self.patience
        if ahead > far and await self.catch_up(following, far) <= far:
            return following  # nobody who says so has a model to show for it
        return max(following, min(ahead, last) if last else ahead)

    def _fit(self, passed: int) -> None:
        """While `passed` rounds went by for the others we did one: do fewer local steps, more again round by round while we keep up.

        A node that is several times slower would else be late for every exchange, and train alone. The gain stays that of all K
        local steps, so the correction errs to the small side.
        """
        most = self._manifest.pace.local_steps
        if passed > 1:
            self._local_steps = max(1, self._local_steps // passed)
        else:
            self._local_steps = min(most, self._local_steps + max(1, most // RECOVERY_ROUNDS))

    async def catch_up(self, round: int, newer_than: int) -> int:
        """Who is far behind has a stale model: take a peer's, with every flow deleted. -> the round it is at, else `round`"""
        fetched = await self._fetch(newer_than)
        if fetched is None:
            return round
        await self._exchange.reset_all()
        self._progress.round = fetched
        return fetched

    @property
    def patience(self) -> int:
        """Rounds that a node may lag and still go on with its own model."""
        return self._manifest.pace.ramp_rounds

    # --- clock pace ---------------------------------------------------------------------------------------

    async def _slots(self, start: int) -> None:
        pace, exchange = self._manifest.pace, self._exchange
        assert isinstance(exchange, Exchange), "the manifest was checked: nobody pulls in clock pace"
        edges = StickyEdges(self._manifest.overlay.degree, self._salt)
        exchange.welcome(edges.accept)
        exchange.dropped = edges.drop
        self.edges = edges if self._manifest.overlay.kind == "sticky" else None
        slot = start
        while pace.rounds == 0 or slot < pace.rounds:
            try:
                self._progress.under_way = slot
                trained = await self._engine.call(calls.Free(on=True, round=slot))
                assert isinstance(trained, calls.Trained), trained
                self._note(trained, slot)
                with trio.move_on_after(pace.slot_s):
                    await self._meet(exchange, edges, slot)
                if (slot + 1) % pace.evaluate_every == 0:
                    await self.evaluate()
                await self._save_when_due()
            except EngineError as error:
                await self.recover(error)
            await trio.sleep_until(self._clock.next_slot_at(trio.current_time(), pace.slot_s))
            slot = max(slot + 1, self._clock.slot(trio.current_time(), pace.slot_s))
        await self._engine.call(calls.Free(on=False, round=slot))

    async def _meet(self, exchange: Exchange, edges: StickyEdges, slot: int) -> None:
        """One contact: the next of our edges, or this slot's partners where the overlay is a schedule."""
        members = self._membership.members
        if self._manifest.overlay.kind == "sticky":
            _opened, closed = edges.update(self._me, members)
            for peer in closed:
                await exchange.settle(peer)
            await exchange.contact_next(edges.peers, slot)
            return
        for peer in self._partners(slot):
            await exchange.contact(peer, slot)

    # --- both ---------------------------------------------------------------------------------------------

    async def recover(self, error: EngineError) -> None:
        """The engine is lost: say so and wait for the next one."""
        self._report.event("engine_lost", str(error), level="warning", round=self._progress.round)
        await self._engine.ready()

    async def evaluate(self) -> None:
        """Measure on held-out data and note it."""
        evaluated = await self._engine.call(calls.Evaluate())
        if isinstance(evaluated, calls.Evaluated):
            self._progress.value, self._progress.value_round = evaluated.value, self._progress.round
            self._progress.values.add(self._progress.round, self._elapsed(), evaluated.value)
            metric, done = self._metric(), self._progress.round
            self._report.event(
                "evaluated", f"{metric} {evaluated.value:.4g} after round {done}",
                round=done, metric=metric, value=evaluated.value, loss=evaluated.loss, samples=evaluated.samples,
            )  # fmt: skip

    def _metric(self) -> str:
        opened = self._engine.opened
        return opened.metric if opened is not None else "value"

    async def save(self, export: str = "") -> None:
        """Write the checkpoint and, if `export` is a path, the model; a failure is reported once and kept in `cannot_save`."""
        self._saved_at = trio.current_time()
        try:
            done = await self._engine.call(calls.Save(export))
            reason = done.reason if isinstance(done, calls.Refused) else ""
        except EngineError as error:
            reason = str(error)
        if reason and not self.cannot_save:
            self._report.event("cannot_save", reason, level="error")
        elif self.cannot_save and not reason:
            self._report.event("saves_again", "checkpoints can be written again")
        self.cannot_save = reason

    async def _save_when_due(self) -> None:
        if trio.current_time() - self._saved_at >= self._checkpoint_s:
            await self.save()

    def _note(self, trained: calls.Trained, round: int | None = None) -> None:
        progress = self._progress
        steps = trained.local_steps - progress.local_steps
        progress.round = (trained.round if round is None else round) + 1
        progress.local_steps = trained.local_steps
        progress.computed.add(max(0, steps), trained.seconds)
        progress.epsilon = trained.epsilon
        progress.gpu, progress.gpu_memory_bytes = trained.gpu, trained.gpu_memory_bytes
        progress.paced.note(trio.current_time(), trained.local_steps)
        self._measured(trained.distance)
        if trained.halted and trained.halted != progress.halted:
            self._report.event(
                "data_at_rest",
                f"nothing more is learned from this node's data: {trained.halted}; it goes on serving the swarm",
                level="warning",
                round=progress.round,
            )
        progress.halted = trained.halted
        if steps > 0:
            progress.loss = trained.loss
            progress.losses.add(progress.round, self._elapsed(), trained.loss)
            if trained.seconds > 0:
                progress.steps_per_s = steps / trained.seconds

    def _measured(self, distance: float | None) -> None:
        if distance is not None:
            self._progress.distance = distance
            self._progress.distances.add(self._progress.round, self._elapsed(), distance)

    def _elapsed(self) -> float:
        return trio.current_time() - self._began
