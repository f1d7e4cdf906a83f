"""Download up to three models concurrently for the engine to compare; where a member is silent, ask the next one as well.

A member that offers a model and then sends nothing, or too slowly, holds a joiner up by no more than what chunks usually take:

    silent             by the times of chunks of the others (`starling.gossip.chunk_times`)
    lagging            silent, or at its pace it would come later than further models may once there are two
    the next member    is asked as soon as one lags; that one is not cut off, and counts if it comes in time after all
    two are here       and all others lag: nobody is waited for

With one model or none everybody is waited for until they fail, as a newcomer that believed the first who answers could be had by
whoever is quickest. For the same reason it waits for members that it is about to meet while it knows fewer than three that have a model.
"""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from starling.gossip.chunk_times import ChunkTimes
from starling.gossip.errors import EngineError
from starling.node.daemon.state.downloads import Offered
from starling.node.daemon.state.fetching import POLL_S
from starling.node.daemon.state.partial import ModelFile
from starling.node.daemon.state.transfer import Transfer
from starling.node.interfaces import EngineHandle, Reporter
from starling.node.rpc import calls

ASKED = 3
MOST_BESIDE = 2 * ASKED  # members asked at a time, including those that lag

More = Callable[[], Awaitable[Sequence[str]]]
"""Waits for further members that may be met soon -> those that came, best first; nobody: there will be none."""


async def nobody() -> Sequence[str]:
    """Return that no further members will be met."""
    await trio.lowlevel.checkpoint()
    return ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """Members that were not asked yet, best first; asked ones are removed."""

    left: list[str]
    more: More = nobody


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which models are newer, and the number of this collection at the engine."""

    newer_than: int
    turn: int


@dataclass(slots=True)
class Collecting:
    """One collection of models from those of `waiting`."""

    transfer: Transfer
    engine: EngineHandle
    report: Reporter
    times: ChunkTimes
    wanted: Wanted
    waiting: Waiting
    held: list[str] = field(default_factory=list, init=False)
    """Members whose models the engine holds."""
    behind: int = field(default=0, init=False)
    """Number of members that have no newer model."""
    is_tied: bool = field(default=False, init=False)
    """Whether as many members contradict as have a newer model, if a live node with its own counts as one."""
    _under_way: dict[str, float] = field(default_factory=dict)  # peer -> time at which it was asked
    _took_s: list[float] = field(default_factory=list)  # what downloads took
    _changed: trio.Event = field(default_factory=trio.Event)
    _considering: trio.Lock = field(default_factory=trio.Lock)

    async def run(self, live: bool) -> tuple[list[str], tuple[str, ...]]:
        """Have the engine hold up to three models -> their members, and all members with the same model.

        Nobody if more members contradict them. Raises EngineError: the engine was lost.
        """
        while len(self.held) < ASKED and (self.waiting.left or await self._met()):
            count = ASKED - len(self.held)
            asked, self.waiting.left[:count] = self.waiting.left[:count], []
            ahead = self._ahead(await self.transfer.offers(asked, newer_than=self.wanted.newer_than))
            same = [] if self.held else _same(ahead)
            if same and self.behind + live < len(same):
                await self._hold_one(same)
                if self.held:
                    return self.held, tuple(offered.peer for offered in same)
                ahead = [offered for offered in ahead if offered not in same]
            if self.behind > len(self.held) + len(ahead):
                break
            await self._hold(ahead)
        if self.behind >= len(self.held) or len(self.held) <= live:
            return [], ()
        self.is_tied = live and len(self.held) == self.behind + 1
        return sorted(self.held), ()

    async def _met(self) -> bool:
        """Wait for further members where too few have a model to compare -> whether some came."""
        if self.held and len(self.held) + self.behind < ASKED:
            self.waiting.left.extend(await self.waiting.more())
        return bool(self.waiting.left)

    def _ahead(self, offers: Sequence[Offered]) -> list[Offered]:
        """Count contradicting offers -> the newer ones."""
        offers = [offered for offered in offers if offered.offer.size]
        for offered in offers:
            self.times.offered(offered.peer, offered.took_s)
        self.behind += sum(it.offer.round <= self.wanted.newer_than for it in offers)
        return [offered for offered in offers if offered.offer.round > self.wanted.newer_than]

    async def _hold_one(self, same: Sequence[Offered]) -> None:
        """Download a model from all that have it, and pass it to the engine."""
        state = await self.transfer.downloads.download(same[0], same, self.times)
        self.times.end(trio.current_time())
        if state is not None:
            await self._consider(same[0], state)

    async def _hold(self, offers: Sequence[Offered]) -> None:
        """Download models concurrently and pass them to the engine. Raises EngineError: the engine was lost."""
        lost: list[EngineError] = []

        async def take(offered: Offered) -> None:
            began = trio.current_time()
            state = await self.transfer.downloads.download(offered, (), self.times)
            if state is not None:
                self._took_s.append(trio.current_time() - began)
                try:
                    await self._consider(offered, state)
                except EngineError as error:
                    lost.append(error)

        async def take_next(peer: str) -> None:
            self.times.asked(peer, trio.current_time())
            try:
                ahead = self._ahead(await self.transfer.offers([peer], newer_than=self.wanted.newer_than))
            finally:
                self.times.given_up(peer, trio.current_time())
            for offered in ahead:
                await take(offered)

        async with trio.open_nursery() as nursery:

            def start(peer: str, work: Callable[[], Awaitable[None]]) -> None:
                self._under_way[peer] = trio.current_time()
                nursery.start_soon(self._ending, peer, work)

            for offered in offers:
                start(offered.peer, partial(take, offered))
            while self._under_way:
                with trio.move_on_after(POLL_S):
                    await self._changed.wait()
                self._changed = trio.Event()
                lagging = self._lagging(trio.current_time())
                count = min(ASKED - len(self.held) - len(self._under_way) + len(lagging), MOST_BESIDE - len(self._under_way))
                following, self.waiting.left[: max(0, count)] = self.waiting.left[: max(0, count)], []
                for peer in following:
                    start(peer, partial(take_next, peer))
                if len(self.held) >= ASKED or (len(self.held) > 1 and len(lagging) == len(self._under_way)):
                    nursery.cancel_scope.cancel()
                    break
        self.times.end(trio.current_time())
        if lost:
            raise lost[0]

    async def _ending(self, peer: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work with a member, and signal its end."""
        try:
            await work()
        finally:
            del self._under_way[peer]
            self._changed.set()

    def _lagging(self, now: float) -> set[str]:
        """Return the asked members that are silent, or would come later than a further model could, once there are two."""
        at_pace = {peer: self.transfer.downloads.at_pace_s(peer, now) for peer in self._under_way}
        took = sorted([*self._took_s, *(it for it in at_pace.values() if it is not None)])
        longest_s = 2.0 * took[1] + (self.times.usual_s() or self.times.least_s) if len(took) > 1 else math.inf
        return {
            peer
            for peer, began in self._under_way.items()
            if self.times.is_silent(peer, now) or max(at_pace[peer] or 0.0, now - began) > longest_s
        }

    async def _consider(self, offered: Offered, state: bytes | ModelFile) -> None:
        """Pass a model to the engine, unless it has enough. Raises EngineError: the engine was lost."""
        file, data = (state, b"") if isinstance(state, ModelFile) else (None, state)
        try:
            async with self._considering:
                if len(self.held) >= ASKED:
                    return
                path = "" if file is None else str(file.path)
                reply = await self.engine.call(calls.Consider(offered.peer, offered.offer.round, data, self.wanted.turn, path))
                if not isinstance(reply, calls.Refused):
                    self.held.append(offered.peer)
                elif reply.kind == "peer":  # otherwise three are stored
                    # well-formed, but with values that no honest node trains with
                    unusable = reply.reason == "state_unusable"
                    self.report.fault(offered.peer, "state_poisoned" if unusable else "state_refused")
        finally:
            if file is not None:
                file.delete()


def _same(offers: Sequence[Offered]) -> list[Offered]:
    """Return two or more bitwise equal offers that are more than half of all; else nothing."""
    if not offers:
        return []
    what, count = Counter((offered.offer.digest, offered.offer.round) for offered in offers).most_common(1)[0]
    if count < 2 or 2 * count <= len(offers):
        return []
    return [offered for offered in offers if (offered.offer.digest, offered.offer.round) == what]
