"""Fetch outer parameters of other members for the engine to choose from, where members' differ (`starling.gossip.mix.common_outer`).

All who report what is wanted are asked for it at once (`Transfer.offers`), and what they offer is downloaded at once. What has not come
when enough members' are here has as long again, and `OFFER_GRACE_S`: a silent member costs no more than that, twice. Where it alone has
what is wanted, or says so, it has as long as its offer took, twice, and what a slow line takes. Who was silent is reported.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from starling.gossip.chunk_times import ChunkTimes
from starling.gossip.errors import EngineError
from starling.node.daemon.state.asking import SLOW_BYTES_PER_S
from starling.node.daemon.state.downloads import Offered
from starling.node.daemon.state.partial import ModelFile
from starling.node.daemon.state.transfer import OFFER_GRACE_S, Transfer
from starling.node.interfaces import EngineHandle, Reporter
from starling.node.rpc import calls


@dataclass(frozen=True, slots=True)
class OuterSync:
    """Replaces outer parameters that differ from other members'."""

    transfer: Transfer
    engine: EngineHandle
    report: Reporter

    async def repair(self, wanted: calls.Divergence) -> None:
        """Fetch what is wanted, and have the engine continue from what members choose of it. Raises EngineError: the engine was lost."""
        came = await self._fetch(wanted)
        replaced = came >= wanted.voices and isinstance(await self.engine.call(calls.ReplaceOuter()), calls.Done)
        done = f"those of {came} are used" if replaced else f"those of {came} came, which is too few"
        count = sum(len(peers) for _, peers in wanted.outer)
        text = f"outer parameters of {count} other members differ from this node's; {done}"
        self.report.event("anchor_parted", text, level="warning", members=count, received=came, replaced=replaced)

    async def _fetch(self, wanted: calls.Divergence) -> int:
        """Return of how many members the engine has the outer parameters now. Raises EngineError: the engine was lost."""
        reported = {peer: digest for digest, peers in wanted.outer for peer in peers}
        offered = await self.transfer.offers(sorted(reported), reported)
        came, began, lost, times = 0, trio.current_time(), list[EngineError](), ChunkTimes()

        async def get(digest: bytes, peers: tuple[str, ...], scope: trio.CancelScope) -> None:
            nonlocal came
            try:
                given = [it for it in offered if it.peer in peers and it.offer.size]
                if not await self._get(digest, given, times, len(wanted.outer)):
                    return
            except EngineError as error:
                lost.append(error)
                return
            before, came = came, came + len(peers)
            if before < wanted.voices <= came:
                scope.deadline = 2.0 * trio.current_time() - began + OFFER_GRACE_S

        async with trio.open_nursery() as nursery:
            for digest, peers in wanted.outer:
                nursery.start_soon(get, digest, peers, nursery.cancel_scope)
        times.end(trio.current_time())
        for peer in sorted(times.let_down):
            self.report.fault(peer, "state_withheld")
        if lost:
            raise lost[0]
        return came

    async def _get(self, digest: bytes, offered: Sequence[Offered], times: ChunkTimes, beside: int) -> bool:
        """Give the engine the outer parameters with a digest -> whether it has them. Raises EngineError: the engine was lost.

        `beside`: how many digests are fetched at once.

        Of members that offer different bytes for them those that most offer are asked first, and the next beside them after
        `OFFER_GRACE_S`: who sends nothing delays the others by no more.
        """
        by_root, taken, lost = defaultdict[bytes, list[Offered]](list), list[bool](), list[EngineError]()
        for it in offered:
            by_root[it.offer.digest].append(it)

        async def get(same: list[Offered], scope: trio.CancelScope, ended: trio.Event) -> None:
            try:
                await take(same, scope)
            finally:
                ended.set()

        async def take(same: list[Offered], scope: trio.CancelScope) -> None:
            state = None
            with trio.move_on_after(_longest_s(same, beside)):
                state = await self.transfer.downloads.download(same[0], same[1:], times)
            if state is None:
                return
            try:
                if not await self._is_wanted(digest, same, state):
                    return
                taken.append(True)
            except EngineError as error:
                lost.append(error)
            scope.cancel()

        async with trio.open_nursery() as nursery:
            for same in sorted(by_root.values(), key=len, reverse=True):
                nursery.start_soon(get, same, nursery.cancel_scope, ended := trio.Event())
                with trio.move_on_after(OFFER_GRACE_S):
                    await ended.wait()
        if lost:
            raise lost[0]
        return bool(taken)

    async def _is_wanted(self, digest: bytes, same: list[Offered], state: bytes | ModelFile) -> bool:
        """Return whether the engine has taken what these members offered; if it is something else, that is their fault."""
        file, data = (state, b"") if isinstance(state, ModelFile) else (None, state)
        try:
            path = "" if file is None else str(file.path)
            reply = await self.engine.call(calls.ConsiderOuter(same[0].peer, digest, data, path))
        finally:
            if file is not None:
                file.delete()
        if isinstance(reply, calls.Refused) and reply.kind == "peer":
            for it in same:
                self.report.fault(it.peer, "state_refused")
        return isinstance(reply, calls.Done)


def _longest_s(same: Sequence[Offered], beside: int) -> float:
    """Return how long one of so many downloads may take from members that made these offers: an engine answers both alike."""
    return 2.0 * max(it.took_s for it in same) + OFFER_GRACE_S + 2.0 * beside * same[0].offer.size / SLOW_BYTES_PER_S
