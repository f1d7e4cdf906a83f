"""A late joiner's model: asked of several members who have little in common, and believed where enough of them agree.

Three members are asked at a time, as far as there are so many. Models that are equal to the bit agree; else the engine compares them
(`robust.model_agreement`). Who offers what no honest member can have is banned, who merely differs is left out, and
if those asked contradict
each other the next are. Three models are held at most. Nobody is believed who says that the swarm is far ahead while more others say that
it is not: its model would be a way into every node that starts.

    two models are here      who is still giving has as long again as these took, and a little
    one member has a model   there is nothing to compare it with: it is taken, and that is said
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import trio

from starling.gossip.errors import EngineError
from starling.node.daemon.state.transfer import Offered, Transfer
from starling.node.interfaces import EngineHandle, Reporter
from starling.node.rpc import calls

ASKED = 3
GRACE_S = 10.0
COMPARED = 64
"""Members among whom those with little in common are looked for."""


def disjoint(peers: Sequence[str], traits: Callable[[str], Collection[str]]) -> list[str]:
    """The same peers in another order: each group of `ASKED` has as little in common as there is to choose from.

    Args:
        peers: any order; of those that share equally little the first comes first.
        traits: of a peer: where it is, who runs it, who invited it.
    """
    left, rest, order = list(peers[:COMPARED]), peers[COMPARED:], list[str]()
    known = {peer: traits(peer) for peer in left}
    shared: Counter[str] = Counter()
    while left:
        if len(order) % ASKED == 0:
            shared.clear()
        chosen = min(left, key=lambda peer: sum(shared[trait] for trait in known[peer]))
        left.remove(chosen)
        order.append(chosen)
        shared.update(known[chosen])
    return [*order, *rest]


class ModelSync:
    """Takes over what members agree on.

    Args:
        transfer: to ask and download.
        engine: holds and compares models, and goes on with what comes of them.
        report: for events and faults.
    """

    def __init__(self, *, transfer: Transfer, engine: EngineHandle, report: Reporter) -> None:
        self._transfer = transfer
        self._engine = engine
        self._report = report
        self._turn = 0
        self.contradicted = False
        """Models were there the last time, but no two that go together."""

    async def fetch(self, sources: Sequence[str], newer_than: int) -> int | None:
        """Take over a model that is past round `newer_than`. -> its round; None if there is none to be believed

        Args:
            sources: members, best first.
            newer_than: our own round.

        Raises:
            EngineError: the engine was lost.
        """
        self.contradicted = False
        waiting = list(sources)
        while waiting:
            held, same, waiting = await self._collect(waiting, newer_than)
            if not held:
                return None
            agreed = await self._engine.call(calls.Agree())
            if not isinstance(agreed, calls.Agreed):
                raise EngineError(f"models were not compared: {agreed}")
            for peer in agreed.outside:
                self._report.fault(peer, "state_poisoned")
            if agreed.peers:
                self._tell(agreed, same)
                return agreed.round
            self.contradicted = True
            self._report.event(
                "state_contradicted", f"the models of {_words(held)} contradict each other; none is taken",
                level="warning", peers=tuple(held),
            )  # fmt: skip
        return None

    async def _collect(self, waiting: Sequence[str], newer_than: int) -> tuple[list[str], tuple[str, ...], list[str]]:
        """Have the engine hold up to three models. -> whose, who else has the very same one, and who was not asked yet"""
        held: list[str] = []
        behind = 0
        self._turn += 1
        left = list(waiting)
        while left and len(held) < ASKED:
            count = ASKED - len(held)
            asked, left = left[:count], left[count:]
            offers = [offered for offered in await self._transfer.offers(asked) if offered.offer.size]
            ahead = [offered for offered in offers if offered.offer.round > newer_than]
            behind += len(offers) - len(ahead)
            same = [] if held else _same(ahead)
            if same and behind < len(same):
                held += await self._hold(same[:1], same)
                if held:
                    return held, tuple(offered.peer for offered in same), left
                ahead = [offered for offered in ahead if offered not in same]
            if behind > len(held) + len(ahead):
                break
            held += await self._hold(ahead, ())
        if behind > len(held):
            return [], (), []
        return held, (), left

    async def _hold(self, offers: Sequence[Offered], holders: Sequence[Offered]) -> list[str]:
        """Download side by side and hand over to the engine. -> whose models it holds"""
        held: list[str] = []
        lost: list[EngineError] = []
        began = trio.current_time()

        async def take(offered: Offered, scope: trio.CancelScope) -> None:
            state = await self._transfer.download(offered, holders)
            if state is None:
                return
            try:
                reply = await self._engine.call(
                    calls.Consider(offered.peer, offered.offer.round, state, self._turn)
                )  # fmt: skip
            except EngineError as error:
                lost.append(error)
                return
            if isinstance(reply, calls.Refused) and reply.kind != "peer":
                return  # it is enough
            if isinstance(reply, calls.Refused):
                unusable = (
                    reply.reason == "state_unusable"
                )  # right in form, and no honest node trains with such numbers
                self._report.fault(offered.peer, "state_poisoned" if unusable else "state_refused")
                return
            held.append(offered.peer)
            if len(held) == 2:
                scope.deadline = 2.0 * trio.current_time() - began + GRACE_S

        async with trio.open_nursery() as nursery:
            for offered in offers:
                nursery.start_soon(take, offered, nursery.cancel_scope)
        if lost:
            raise lost[0]
        return sorted(held)

    def _tell(self, agreed: calls.Agreed, same: Sequence[str]) -> None:
        peers = same or agreed.peers
        if len(peers) == 1:
            text = f"took the model of round {agreed.round} from {peers[0]}; nobody else had one to compare it with"
        else:
            text = f"took the model of round {agreed.round} on which {_words(peers)} agree"
        self._report.event(
            "state_fetched", text, level="warning" if len(peers) == 1 else "info", peers=tuple(peers), round=agreed.round
        )  # fmt: skip


def _same(offers: Sequence[Offered]) -> list[Offered]:
    """Two or more, and more than half, that are the same to the bit."""
    if not offers:
        return []
    what, count = Counter((offered.offer.digest, offered.offer.round) for offered in offers).most_common(1)[0]
    if count < 2 or 2 * count <= len(offers):
        return []
    return [offered for offered in offers if (offered.offer.digest, offered.offer.round) == what]


def _words(peers: Sequence[str]) -> str:
    return f"{', '.join(peers[:-1])} and {peers[-1]}" if len(peers) > 1 else "".join(peers)
