"""Waits for the quorum, then trains until the rounds are done.

Theory of operation: a `RoundLoop` decides *when*; the exchange service does one round or one contact; the engine computes; membership says
who is here. An EngineError anywhere ends the current round only: the supervisor starts a new engine and the loop goes on.
"""

from dataclasses import dataclass
from typing import Protocol

import trio

from starling.node.config.schema import PaceSection
from starling.node.daemon.membership.neighbors import Members
from starling.node.daemon.training.housekeeping import Housekeeping
from starling.node.daemon.training.late_join import Joining

STABLE_S = 0.5  # seconds for which the member list must be unchanged before round 0


class RoundLoop(Protocol):
    """The local steps and exchanges of one node, in one of the paces."""

    async def begin(self, start: int) -> None:
        """Start at round `start`; where a clock counts rounds, first agree on the time with the members present."""
        ...

    async def run(self, start: int) -> None:
        """Train from round `start` until the manifest's rounds are done (for ever if 0), or the swarm has agreed to stop."""
        ...

    def pause(self, paused: bool) -> None:
        """Do no local steps from the next round on, or do them again."""
        ...


@dataclass(slots=True)
class Training:
    """Runs one node's training from start to end."""

    pace: PaceSection
    members: Members
    joining: Joining
    loop: RoundLoop
    house: Housekeeping
    paused: str = ""
    """Why the owner paused local steps, while exchanges continue at the swarm's speed; "": not paused."""

    def pause(self, why: str) -> None:
        """Do no local steps from the next round (slot) on, for the reason given, or with "" do them again."""
        if bool(why) == bool(self.paused):
            return
        self.paused = why
        self.loop.pause(bool(why))
        report, now = self.house.context.report, self.house.progress.round
        if why:
            report.event("paused", f"no local steps, as {why}; exchanges go on", round=now, why=why)
        else:
            report.event("resumed", "local steps go on", round=now)

    async def quorum(self, start: int) -> None:
        """Wait until enough members are here and their list is stable; a node that starts at a round > 0 goes on alone."""
        self.house.progress.enter("waiting")
        waiting = _Quorum(self.members, 1 if start else self.pace.quorum, self.members.view, trio.current_time())
        if not waiting.here(trio.current_time()):
            text = f"waiting for {waiting.needed} {self.members.whom} before the first round"
            self.house.context.report.event("waiting_for_quorum", text)
        while not waiting.here(trio.current_time()):  # noqa: ASYNC110 — the roster also changes with time alone
            await trio.sleep(0.05)
        await self.loop.begin(start)

    async def run(self, start_round: int) -> None:
        """Train from `start_round` until the loop ends, and evaluate the model that it ended with."""
        progress = self.house.progress
        progress.round = start_round
        progress.speed.add(trio.current_time(), progress.figures.local_steps, progress.computed.seconds)
        progress.enter("training")
        await self.loop.run(start_round)
        while progress.evaluated.round != progress.round:
            async with self.house.surviving():
                await self.house.evaluation.evaluate()
            await trio.sleep(0.01)  # an evaluation on the owner's command may be in progress


@dataclass(slots=True)
class _Quorum:
    """Whether `needed` members are present, and unchanged for `STABLE_S`.

    Who counts is who counts in a round: a peer that this node knows only from others may have left before it was met.
    """

    members: Members
    needed: int
    _view: bytes
    _since: float

    def here(self, now: float) -> bool:
        """Return whether enough members are present at this moment."""
        if self.members.view != self._view:
            self._view, self._since = self.members.view, now
        return len(self.members.roster) >= self.needed and (self.needed == 1 or now - self._since >= STABLE_S)
