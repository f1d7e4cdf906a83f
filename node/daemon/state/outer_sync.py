"""Fetch outer parameters of other members for the engine to choose from, where members' differ (`starling.gossip.mix.common_outer`).

All who report what is wanted are asked for it at once (`Transfer.offers`), and what they offer is downloaded at once. What has not come
when enough members' are here has as long again, and `OFFER_GRACE_S`: a silent member costs no more than that, twice.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from starling.gossip.chunk_times import ChunkTimes
from starling.gossip.errors import EngineError
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
                if not await self._get(digest, [it for it in offered if it.peer in peers and it.offer.size], times):
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
        if lost:
            raise lost[0]
        return came

    async def _get(self, digest: bytes, offered: Sequence[Offered], times: ChunkTimes) -> bool:
        """Give the engine the outer parameters with a digest -> whether it has them. Raises EngineError: the engine was lost."""
        by_root = defaultdict[bytes, list[Offered]](list)
        for it in offered:
            by_root[it.offer.digest].append(it)
        for same in sorted(by_root.values(), key=len, reverse=True):
            state = await self.transfer.downloads.download(same[0], same[1:], times)
            if state is not None and await self._is_wanted(digest, same, state):
                return True
        return False

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
