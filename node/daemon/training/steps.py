"""Pace "steps": a round is K local steps, then exchanges with the neighbors that the overlay names, then Mix.

A node that learns of a later round, after a suspension, a restart or a late join, goes there (`catch_up.py`); others do not wait for it.
Where rounds overlap, the local steps of the next are done beside the exchanges, from the model before them.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import trio
from msgspec import structs

from starling.gossip.errors import EngineError
from starling.node.config.schema import PaceSection
from starling.node.daemon.engine.client import concurrent
from starling.node.daemon.exchange.outcome import RoundOutcome
from starling.node.daemon.exchange.rounds import RoundExchange
from starling.node.daemon.membership.beacon import BeaconService
from starling.node.daemon.membership.neighbors import Neighbors
from starling.node.daemon.progress import Progress
from starling.node.daemon.training.catch_up import Jumps, last_round
from starling.node.daemon.training.grants import Grants
from starling.node.daemon.training.housekeeping import Housekeeping
from starling.node.interfaces import EngineHandle
from starling.node.rpc import calls


def evaluated(pace: PaceSection, done: int) -> bool:
    """Return whether the model is evaluated after `done` >= 1 rounds: regularly, and after the last."""
    return done % pace.evaluate_every == 0 or done == pace.rounds


@dataclass(frozen=True, slots=True)
class Links:
    """Links of a round, and the facts that both ends of an exchange must agree on."""

    neighbors: Neighbors
    order: BeaconService

    def of(self, round: int) -> tuple[int, Mapping[str, float], bytes]:
        """Return the round, the mixing weights by peer, and the digest of the members and their order."""
        return round, self.neighbors.weights(round), self.order.digest(round)


class Exchanging(Protocol):
    """The exchanges of a round."""

    def computing(self, round: int, links: Mapping[str, float], view: bytes) -> None:
        """Note that local steps of `round` begin."""
        ...

    async def round(self, round: int, links: Mapping[str, float], view: bytes) -> RoundOutcome:
        """Exchange, then call Mix. Raises EngineError: the engine was lost."""
        ...


class Rounds(Protocol):
    """The two halves of a round. Its methods raise EngineError: the engine was lost."""

    async def train(self, round: int) -> calls.Trained:
        """Do the local steps of a round -> what was done; its round is a later one if crew members were further."""
        ...

    async def exchange(self, round: int) -> RoundOutcome:
        """Do the exchanges of a round, then Mix."""
        ...

    def forget(self) -> None:
        """Discard local steps done in advance: the engine that did them is lost, or has another model."""
        ...


@dataclass(frozen=True, slots=True)
class Sequential:
    """Local steps first, then the exchanges."""

    links: Links
    exchanges: Exchanging
    grants: Grants

    async def train(self, round: int) -> calls.Trained:
        """Do the local steps of a round."""
        self.exchanges.computing(*self.links.of(round))
        return await self.grants.train(self.grants.grant(round))

    async def exchange(self, round: int) -> RoundOutcome:
        """Do the exchanges of a round, then Mix."""
        return await self.exchanges.round(*self.links.of(round))

    def forget(self) -> None:
        """Do nothing: no steps are done in advance."""


@dataclass(slots=True)
class Overlapping:
    """Does the local steps of the next round concurrently with the exchanges of this one."""

    sequential: Sequential
    exchanges: RoundExchange
    pace: PaceSection
    _ahead: calls.Trained | None = None  # result of the next round's local steps, done in advance

    async def train(self, round: int) -> calls.Trained:
        """Return the steps done in advance, or do the local steps of the round."""
        trained, self._ahead = self._ahead, None
        return await self.sequential.train(round) if trained is None else structs.replace(trained, round=round)

    async def exchange(self, round: int) -> RoundOutcome:
        """Do the exchanges of a round while the local steps of the next are done, then Mix."""
        following, since = round + 1, trio.current_time()
        if following >= last_round(self.pace):
            return await self.sequential.exchange(round)
        links, grants = self.sequential.links, self.sequential.grants
        grant = structs.replace(grants.grant(following), ahead=True)
        lost, done = list[EngineError](), trio.Event()

        async def train() -> None:
            try:
                self._ahead = await grants.train(grant)
            except EngineError as error:
                lost.append(error)
            done.set()

        async def trained() -> None:
            self.exchanges.computing(*links.of(following), since)
            await done.wait()
            if lost:
                raise lost[0]

        async with concurrent(train):
            return await self.exchanges.round(*links.of(round), trained, grants.usual_s)

    def forget(self) -> None:
        """Repeat the steps of the next round."""
        self._ahead = None


@dataclass(frozen=True, slots=True)
class MeasuredBeforeMix:
    """Wraps `Rounds`: in rounds that evaluate, the model is also evaluated before Mix, while its exchanges run."""

    rounds: Rounds
    pace: PaceSection
    engine: EngineHandle
    progress: Progress

    async def train(self, round: int) -> calls.Trained:
        """Do the local steps of a round."""
        return await self.rounds.train(round)

    async def exchange(self, round: int) -> RoundOutcome:
        """Do the exchanges of a round, evaluate meanwhile, then Mix."""
        if not evaluated(self.pace, round + 1):
            return await self.rounds.exchange(round)
        done = trio.Event()
        self.progress.evaluated.alone = None

        async def evaluate() -> None:
            with suppress(EngineError):  # the exchange fails with the same error
                found = await self.engine.call(calls.Evaluate(round + 1, keep=False))  # of a copy
                if isinstance(found, calls.Evaluated) and math.isfinite(found.value):
                    self.progress.evaluated.alone = found.value
            done.set()

        async with concurrent(evaluate):
            outcome = await self.rounds.exchange(round)
            await done.wait()
        return outcome

    def forget(self) -> None:
        """Discard local steps done in advance."""
        self.rounds.forget()


@dataclass(frozen=True, slots=True)
class StepsLoop:
    """Rounds, one after the other. Satisfies `RoundLoop`."""

    pace: PaceSection
    rounds: Rounds
    grants: Grants
    jumps: Jumps
    house: Housekeeping

    async def begin(self, start: int) -> None:
        """Do nothing: rounds are counted without a clock."""

    def pause(self, paused: bool) -> None:
        """Do no local steps from the next round on, or do them again."""
        self.grants.pause(paused)

    async def run(self, start: int) -> None:
        """Do rounds from `start` until the last is done or the swarm has agreed to stop."""
        current = start
        while current < last_round(self.pace) and not self.house.evaluation.stopped_early:
            async with self.house.surviving(self.rounds.forget):
                began = trio.current_time()
                outcome = await self._round(current)
                current = outcome.round
                current = self.house.progress.round = await self._following(outcome, trio.current_time() - began)

    async def _round(self, due: int) -> RoundOutcome:
        """Do local steps, exchanges and Mix, and what is due after them."""
        house, progress = self.house, self.house.progress
        progress.current = due
        trained = await self.rounds.train(due)
        progress.current = done = trained.round
        house.trained(trained, done)
        outcome = await self.rounds.exchange(done)
        house.measured(structs.replace(trained.figures, loss=None, distance=outcome.distance))
        if evaluated(self.pace, done + 1):
            await house.evaluation.evaluate()
        await house.save_when_due()
        return outcome

    async def _following(self, outcome: RoundOutcome, elapsed_s: float) -> int:
        """Return the round after one that took `elapsed_s`."""
        self.house.progress.waits.add(elapsed_s, *outcome.waited)
        self.jumps.ended(outcome, elapsed_s)
        was_away = self.jumps.suspension.missed_rounds > 0  # a suspension does not count as being slow
        following = await self.jumps.following(outcome)
        if not was_away:
            self.grants.passed(following - outcome.round, elapsed_s, outcome.waited.seconds)
        self.grants.skipped(following - outcome.round - 1)
        return following
