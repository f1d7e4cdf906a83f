"""Choose the next round. A node that fell behind catches up over a few rounds with its own model, and over more with a peer's."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from starling.gossip.exchange.suspension import Suspension
from starling.node.config.schema import PaceSection
from starling.node.daemon.exchange.outcome import RoundOutcome
from starling.node.daemon.progress import Progress
from starling.node.rpc import calls

FETCH_PAUSE_S = 10.0  # seconds until claims that were not delivered are checked again, doubled each time
LONGEST_FETCH_PAUSE_S = 640.0  # upper bound of it
LONGEST_REST = 8  # rounds that may pass until outer parameters are replaced again

Fetch = Callable[[int, bool], Awaitable[int | None]]
"""Installs a peer's model, if it is past the given round -> its round, or None.

Further argument: whether this node is live, with a model of its own to lose.
"""
Repair = Callable[[calls.Divergence], Awaitable[None]]
"""Replaces outer parameters that differ from other members'."""


def last_round(pace: PaceSection) -> float:
    """Return the number of rounds to do; inf: there is no end."""
    return pace.rounds or math.inf


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Replaces this node's model by a peer's."""

    fetch: Fetch
    progress: Progress
    max_lag_rounds: int
    """Rounds that a node may lag and still continue with its own model."""
    reset: Callable[[], Awaitable[None]]
    """Resets every edge, as the engine has another model."""
    forget: Callable[[], object] = lambda: None
    """Drops local steps that were done with the model before."""

    async def replace(self, round: int, newer_than: int, *, live: bool = False) -> int:
        """Replace a stale model by a peer's, if that is past `newer_than`, and delete every flow. -> its round, else `round`

        `live`: this node has trained, and needs more voices than its own for it. Raises EngineError: the engine was lost.
        """
        fetched = await self.fetch(newer_than, live)
        if fetched is None:
            return round
        await self.reset()
        self.progress.round = fetched
        self.forget()
        return fetched


@dataclass(slots=True)
class Claims:
    """Limits how often claims about far rounds are checked: with growing pauses after claims for which nobody had a model."""

    _not_before: float = -math.inf
    _pause_s: float = FETCH_PAUSE_S

    def due(self, now: float) -> bool:
        """Return whether the next claim is checked."""
        return now >= self._not_before

    def empty(self, now: float) -> None:
        """Pause, twice as long each time, because nobody had a model."""
        self._not_before = now + self._pause_s
        self._pause_s = min(2.0 * self._pause_s, LONGEST_FETCH_PAUSE_S)

    def confirmed(self) -> None:
        """Begin with a short pause the next time: the swarm is really further."""
        self._pause_s = FETCH_PAUSE_S


@dataclass(slots=True)
class Repairs:
    """Limits how often outer parameters are replaced, each time a model's bytes: after one in the last rounds with growing rests."""

    _last: float = -math.inf  # round of the last
    _rest: int = 1  # rounds from it to the next

    def due(self, round: int) -> bool:
        """Return whether they may be replaced after `round`; if so, it counts as done."""
        if round < self._last + self._rest:
            return False
        self._rest = min(2 * self._rest, LONGEST_REST) if round <= self._last + 2 * LONGEST_REST else 1
        self._last = round
        return True


@dataclass(slots=True)
class Jumps:
    """Pace "steps": finds the round after each round."""

    catch_up: CatchUp
    pace: PaceSection
    left_behind: Callable[[int, int], int]
    """(round, missed_rounds) -> the round that peers have reached if they left us behind, else `round`."""
    repair: Repair
    suspension: Suspension = field(default_factory=Suspension)
    _claims: Claims = field(default_factory=Claims)
    _repairs: Repairs = field(default_factory=Repairs)

    def ended(self, outcome: RoundOutcome, elapsed_s: float) -> None:
        """Record a round that took `elapsed_s`."""
        self.suspension.ended(elapsed_s, outcome.waited.seconds)

    async def following(self, outcome: RoundOutcome) -> int:
        """Return the next round, or a later one that peers have reached; a long jump needs a model of theirs.

        It is the one that they had reached before the download: a node that fetched again until no peer was ahead might never begin. Raises
        EngineError: the engine was lost.
        """
        following, ahead = outcome.round + 1, self._ahead(outcome)
        if ahead > following + self.catch_up.max_lag_rounds:
            if not await self._may_jump(following, ahead):
                return following
        elif outcome.diverged is not None and ahead <= following and self._repairs.due(outcome.round):
            await self.repair(outcome.diverged)
        return max(following, int(min(ahead, last_round(self.pace))))

    def _ahead(self, outcome: RoundOutcome) -> int:
        """Return the round that peers have reached by the round's exchanges, or a later one if this node was suspended."""
        if not self.suspension.missed_rounds:
            return outcome.behind
        return max(outcome.behind, self.left_behind(outcome.round, self.suspension.missed_rounds))

    async def _may_jump(self, following: int, ahead: int) -> bool:
        """Fetch a model, if there is one -> whether this node goes on to round `ahead`.

        Unless this node was held up, and with it so many that too few have such a model: then it goes there with its own, which is no older
        than that of most.
        """
        if not self._claims.due(trio.current_time()):
            return False
        far = following + self.catch_up.max_lag_rounds
        fetched, missed_rounds = await self.catch_up.replace(following, far, live=True) > far, self.suspension.missed_rounds
        self.suspension.caught_up()
        if fetched or ahead < following + missed_rounds:
            self._claims.confirmed()
            return True
        self._claims.empty(trio.current_time())
        return False
