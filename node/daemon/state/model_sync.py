"""A late joiner's model: requested from several members with little in common, and installed if enough of them agree.

Three members are asked at a time. Models that are bitwise equal agree; otherwise the engine compares them (`robust.model_agreement`). A
member that offers a model no honest member can have is banned, one that merely differs is left out, and if those asked contradict each
other the next three are asked. Three models are held at most. A claim that the swarm is far ahead is ignored while more members contradict
it: otherwise one Byzantine model could enter every node that starts.

    two models were received   further downloads have as long again as these took, and GRACE_S
    only one member has one    it is taken without comparison, with a warning, by a node that has nothing to lose

A node that trains takes over another model only if more members have it than contradict it, itself included.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import trio

from starling.gossip.errors import EngineError
from starling.node.daemon.state.downloads import Offered
from starling.node.daemon.state.partial import ModelFile
from starling.node.daemon.state.transfer import Transfer
from starling.node.interfaces import EngineHandle, Reporter
from starling.node.rpc import calls

ASKED = 3
GRACE_S = 10.0
COMPARED = 64  # members among which those with little in common are searched


def disjoint(peers: Sequence[str], traits: Callable[[str], Collection[str]]) -> list[str]:
    """Reorder peers so that each group of `ASKED` has as little in common as possible; the order given breaks ties.

    `traits` of a peer: its address prefix, operator and inviter.
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


@dataclass(slots=True)
class ModelSync:
    """Installs the model that members agree on: requested and downloaded by `transfer`, compared and installed by `engine`."""

    transfer: Transfer
    engine: EngineHandle
    report: Reporter
    contradicted: bool = False  # the last fetch received models, but no two that agree
    _turn: int = 0

    async def fetch(self, sources: Sequence[str], newer_than: int, *, live: bool = False, abreast: Collection[str] = ()) -> int | None:
        """Install a model that is past round `newer_than`, ours. -> its round; None if there is none that members agree on

        Asks `sources`, members, best first. `live`: this node has trained, and its own model is a voice against; `abreast`: sources
        that are known to be at our round, so that an older snapshot of theirs contradicts nobody. Raises EngineError: the
        engine was lost.
        """
        self.contradicted = False
        waiting = list(sources)
        while waiting:
            held, same, waiting = await self._collect(waiting, newer_than, live, abreast)
            if not held:
                return None
            agreed = await self.engine.call(calls.Agree())
            if not isinstance(agreed, calls.Agreed):
                raise EngineError(f"models were not compared: {agreed}")
            for peer in agreed.outside:
                # no proof: two that are alike may be two liars, or have just exchanged
                self.report.fault(peer, "state_outlier")
            if agreed.peers:
                peers = same or agreed.peers
                alone = len(peers) == 1
                unmatched = f"from {peers[0]}; no other member had one to compare it with"
                source = unmatched if alone else f"on which {_listed(peers)} agree"
                self.report.event(
                    "state_fetched",
                    f"took the model of round {agreed.round} {source}",
                    level="warning" if alone else "info",
                    peers=tuple(peers),
                    round=agreed.round,
                )
                return agreed.round
            self.contradicted = True
            self.report.event(
                "state_contradicted",
                f"the models of {_listed(held)} contradict each other; none is taken; `starling ban PEER` leaves one out",
                level="warning",
                peers=tuple(held),
            )
        return None

    async def _collect(
        self, waiting: Sequence[str], newer_than: int, live: bool, abreast: Collection[str]
    ) -> tuple[list[str], tuple[str, ...], list[str]]:
        """Have the engine hold up to three models. -> their peers, all peers with the same model, and the peers not asked yet"""
        held: list[str] = []
        behind = 0  # members that contradict
        self._turn += 1
        left = list(waiting)
        while left and len(held) < ASKED:
            count = ASKED - len(held)
            asked, left = left[:count], left[count:]
            offers = [offered for offered in await self.transfer.offers(asked) if offered.offer.size]
            ahead = [offered for offered in offers if offered.offer.round > newer_than]
            behind += sum(it.offer.round <= newer_than and it.peer not in abreast for it in offers)
            same = [] if held else _same(ahead)
            if same and behind + live < len(same):
                held += await self._hold(same[:1], same)
                if held:
                    return held, tuple(offered.peer for offered in same), left
                ahead = [offered for offered in ahead if offered not in same]
            if behind > len(held) + len(ahead):
                break
            held += await self._hold(ahead, ())
        if behind + 2 * live > len(held):  # a live node contradicts as well, and ties go to it
            return [], (), []
        return held, (), left

    async def _hold(self, offers: Sequence[Offered], holders: Sequence[Offered]) -> list[str]:
        """Download concurrently and pass to the engine. -> peers whose models it holds"""
        held: list[str] = []
        lost: list[EngineError] = []
        began = trio.current_time()

        async def take(offered: Offered, scope: trio.CancelScope) -> None:
            state = await self.transfer.downloads.download(offered, holders)
            if state is None:
                return
            file, data = (state, b"") if isinstance(state, ModelFile) else (None, state)
            path = "" if file is None else str(file.path)
            try:
                reply = await self.engine.call(calls.Consider(offered.peer, offered.offer.round, data, self._turn, path))
            except EngineError as error:
                lost.append(error)
                return
            finally:
                if file is not None:
                    file.delete()
            if isinstance(reply, calls.Refused):
                if reply.kind == "peer":  # else three are held
                    # well-formed, but with values no honest node trains with
                    unusable = reply.reason == "state_unusable"
                    self.report.fault(offered.peer, "state_poisoned" if unusable else "state_refused")
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


def _same(offers: Sequence[Offered]) -> list[Offered]:
    """Two or more offers, and more than half of all, that are bitwise equal."""
    if not offers:
        return []
    what, count = Counter((offered.offer.digest, offered.offer.round) for offered in offers).most_common(1)[0]
    if count < 2 or 2 * count <= len(offers):
        return []
    return [offered for offered in offers if (offered.offer.digest, offered.offer.round) == what]


def _listed(peers: Sequence[str]) -> str:
    return f"{', '.join(peers[:-1])} and {peers[-1]}" if len(peers) > 1 else "".join(peers)
