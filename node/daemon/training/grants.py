"""Grant the local steps of a round: all, fewer while the node is slow, none in a sweep of averaging or while its owner wants none."""

from dataclasses import dataclass, field

import trio

from starling.gossip.exchange.local_steps import LocalSteps
from starling.gossip.overlay.api import Overlay
from starling.gossip.overlay.stages import stage, turn
from starling.node.config.schema import PaceSection
from starling.node.daemon.membership.neighbors import Members
from starling.node.daemon.progress import Progress
from starling.node.daemon.training.local_work import LocalWork
from starling.node.interfaces import Reporter
from starling.node.rpc import calls

FEW = 0.5  # share of the local steps below which a node reports that it does fewer
FEW_ROUNDS = 20  # rounds before that is reported


@dataclass(slots=True)
class Grants:
    """Grants and does the local steps of one node's rounds.

    A node that is paused rests for as long as the local steps of a round take, or others would be waited for as if they were late. The
    first round of a process is done in any case: how long it takes is how long later ones are waited out.
    """

    pace: PaceSection
    overlay: Overlay
    members: Members
    work: LocalWork
    progress: Progress
    report: Reporter
    due: int = field(default=0, init=False)
    """Local steps of all rounds since the start, those jumped over included."""
    pause_s: float = field(default=0.0, init=False)
    """While paused: the seconds that a round's local steps would take; 0 until known, and while not paused."""
    _paused: bool = False
    _local_steps: LocalSteps = field(init=False)  # decides the local steps of the next round

    def __post_init__(self) -> None:
        self._local_steps = LocalSteps(self.pace.local_steps)

    @property
    def usual_s(self) -> float:
        """Return the seconds that the local steps of a round take; 0 until it is known."""
        rate = self.progress.speed.per_busy_s()
        return self.pace.local_steps / rate if rate else 0.0

    def pause(self, paused: bool) -> None:
        """Grant no local steps from the next round on, or grant them again."""
        self._paused, self.pause_s = paused, self.usual_s * paused

    def grant(self, round: int) -> calls.Train:
        """Return the call for the round's local steps."""
        if self._paused and not self.pause_s:
            self.pause_s = self.usual_s
        n = len(self.members.roster)
        now = stage(self.overlay, n, round)
        local = now.local and not self.pause_s
        self.due += self.pace.local_steps * local
        return calls.Train(round, self._local_steps.now * local, now.first, now.last, turn(self.overlay, n, round))

    async def train(self, grant: calls.Train) -> calls.Trained:
        """Do the local steps of a round, or pause. Raises EngineError: the engine was lost."""
        if self.pause_s:
            await trio.sleep(self.pause_s)
        return await self.work.train(grant)

    def passed(self, rounds: int, elapsed_s: float, waited_s: float) -> None:
        """Adapt the number of steps: while this node did a round, the swarm did `rounds` >= 1; see `LocalSteps.passed`."""
        self._local_steps.passed(rounds, elapsed_s, waited_s)

    def skipped(self, rounds: int) -> None:
        """Count the local steps of rounds jumped over, and report once that this node did few of those that were due."""
        progress, steps = self.progress, self.pace.local_steps
        self.due += rounds * steps * (not self._paused)
        done = progress.computed.steps
        few = done < FEW * self.due and self.due >= FEW_ROUNDS * steps and not progress.halted
        text = f"{done} of {self.due} local steps done: others left this node behind, or said so"
        if few and not progress.few_steps:
            self.report.event("few_steps", text, level="warning", done=done, due=self.due)
        progress.few_steps = text if few else ""
