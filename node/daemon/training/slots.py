"""Pace "clock": the engine trains without pause, and once a slot the node exchanges with the next of its edges.

Slots are counted on the swarm clock, from the quorum.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import trio

from starling.gossip.exchange.swarm_clock import JUMP_S, SwarmClock
from starling.gossip.overlay.api import LastingEdges
from starling.node.config.schema import PaceSection
from starling.node.daemon.exchange.visits import VisitExchange
from starling.node.daemon.membership.neighbors import Members, Neighbors
from starling.node.daemon.training.housekeeping import Housekeeping
from starling.node.platform import asleep_s
from starling.node.rpc import calls

CLOCK_TIMEOUT_S = 10.0  # seconds to wait for members that report the swarm's time


class Contacts(Protocol):
    """Chooses the peers that this node exchanges with in a slot."""

    async def meet(self, slot: int) -> None:
        """Exchange with the peers of a slot. Raises EngineError: the engine was lost."""
        ...


@dataclass(frozen=True, slots=True)
class LastingContacts:
    """Exchanges with the next of this node's edges."""

    me: str
    exchange: VisitExchange
    edges: LastingEdges
    members: Members
    may_meet: Callable[[str], bool]
    """Whether this node and a member can have a connection; edges are for those."""

    async def meet(self, slot: int) -> None:
        """Update the edges to the present members, and visit one."""
        _opened, closed = self.edges.update(self.me, tuple(filter(self.may_meet, self.members.roster)))
        for peer in closed:
            await self.exchange.settle(peer)
        await self.exchange.contact_next(self.edges.visits(slot), slot)


@dataclass(frozen=True, slots=True)
class ScheduledContacts:
    """Exchanges with the slot's partners, where the overlay is a schedule."""

    exchange: VisitExchange
    neighbors: Neighbors

    async def meet(self, slot: int) -> None:
        """Visit the scheduled peers, one after the other."""
        for peer in self.neighbors.weights(slot):
            await self.exchange.contact(peer, slot)


@dataclass(slots=True)
class SlotsLoop:
    """Slots, one after the other. Satisfies `RoundLoop`."""

    exchange: VisitExchange
    contacts: Contacts
    members: Members
    clock: SwarmClock
    house: Housekeeping
    asleep_s: Callable[[], float] = asleep_s
    """How long the machine has slept so far."""
    _paused: bool = False
    _asleep_s: float = 0.0
    _made: float = field(default_factory=trio.current_time)  # before a model was asked for

    @property
    def pace(self) -> PaceSection:
        return self.house.context.manifest.pace

    async def begin(self, start: int) -> None:
        """Start the swarm clock: at 0 in a swarm that begins, else at the time that members report, some of whom are waited for."""
        others = len(self.members.members) - 1
        if start:
            with trio.move_on_after(CLOCK_TIMEOUT_S):
                while not self.clock.is_informed(others):  # noqa: ASYNC110 — probes bring it, whatever happens here
                    await trio.sleep(0.05)
        self._asleep_s = self.asleep_s()
        now, pace = trio.current_time(), self.pace
        old_s = now - self._made + pace.ramp_rounds * pace.slot_s  # a checkpoint may lag by so many rounds
        self.clock.begin(start * pace.slot_s, now, old_s if start else 0.0)

    def pause(self, paused: bool) -> None:
        """Do no local steps from the next slot on, or do them again."""
        self._paused = paused

    async def run(self, start: int) -> None:
        """Train, and do slots from `start` until the last is over or the swarm has agreed to stop."""
        pace, slot = self.pace, start
        while (pace.rounds == 0 or slot < pace.rounds) and not self.house.evaluation.stopped_early:
            async with self.house.surviving():
                await self._slot(slot)
            await trio.sleep_until(self.clock.next_slot_at(trio.current_time(), pace.slot_s))
            slot = max(slot + 1, self.clock.slot(trio.current_time(), pace.slot_s))
        await self.house.engine.call(calls.Free(on=False, round=slot))

    async def _slot(self, slot: int) -> None:
        house, asleep_s = self.house, self.asleep_s()
        if asleep_s - self._asleep_s > JUMP_S:
            self.clock.suspended(asleep_s - self._asleep_s, trio.current_time())
            self._asleep_s = asleep_s
        house.progress.current = slot
        trained = await house.engine.call(calls.Free(on=not self._paused, round=slot))
        assert isinstance(trained, calls.Trained), trained
        house.trained(trained, slot)
        with trio.move_on_after(self.exchange.longest_s):
            await self.contacts.meet(slot)
        if house.evaluation.due(slot + 1):
            await house.evaluation.evaluate()
        await house.save_when_due()
