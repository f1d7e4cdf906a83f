"""A late joiner's model: requested from several members with little in common, and installed if enough of them agree.

Three members are asked at a time. Models that are bitwise equal agree; otherwise the engine compares them (`robust.model_agreement`). A
member that offers a model no honest member can have is banned, one that merely differs is left out, and if those asked contradict each
other the next three are asked. Three models are held at most. A claim that the swarm is far ahead is ignored while as many members
contradict it: otherwise one Byzantine model could enter every node that starts.

    a member is silent         the next is asked beside it, and this one last the next time (`collecting`)
    two models were received   further downloads have as long again as these took, and what chunks usually take
    only one member has one    members that are about to be met are waited for; then it is taken without comparison, with a warning, by a
                               node that has nothing to lose

A node that trains takes over another model only if two members or more have it and more than contradict it, itself included. Where it
is itself that makes a tie, its model is compared as well: theirs must be nearer to each other than to its own. So one of these two that
lies leaves it at most half as far from the other as it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from starling.gossip.chunk_times import ChunkTimes
from starling.gossip.errors import EngineError
from starling.gossip.limits import keep
from starling.node.daemon.state.collecting import Collecting, More, Waiting, Wanted, nobody
from starling.node.daemon.state.transfer import Transfer
from starling.node.interfaces import EngineHandle, Reporter
from starling.node.rpc import calls

MAX_LET_DOWN = 64  # members that failed to answer, remembered at most


@dataclass(slots=True)
class ModelSync:
    """Installs the model that members agree on: requested and downloaded by `transfer`, compared and installed by `engine`."""

    transfer: Transfer
    engine: EngineHandle
    report: Reporter
    contradicted: bool = False  # the last fetch received models, but no two that agree
    _turn: int = 0
    _let_down: dict[str, None] = field(default_factory=dict)  # members that did not answer the last time

    async def fetch(self, sources: Sequence[str], newer_than: int, *, live: bool = False, more: More = nobody) -> int | None:
        """Install a model that is past round `newer_than`, ours. -> its round; None if there is none that members agree on

        Asks `sources`, members, best first, and those of `more` where too few have a model. `live`: this node has trained, and its own
        model is a voice against. Raises EngineError: the engine was lost.
        """
        self.contradicted = False
        times = ChunkTimes()
        waiting = Waiting(sorted(sources, key=self._let_down.__contains__), more)
        while waiting.left:
            self._turn += 1
            collecting = Collecting(self.transfer, self.engine, self.report, times, Wanted(newer_than, self._turn), waiting)
            try:
                held, same = await collecting.run(live)
            finally:
                self._remember(times)
            if not held:
                return None
            agreed = await self.engine.call(calls.Agree(against_own=collecting.is_tied))
            if not isinstance(agreed, calls.Agreed):
                raise EngineError(f"models were not compared: {agreed}")
            for peer in agreed.outside:
                # no proof of a fault: two equal offers may come from two liars, or from two that have just exchanged
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

    def _remember(self, times: ChunkTimes) -> None:
        """Ask members that failed to deliver last the next time, until they send something again."""
        for peer in times.delivered:
            self._let_down.pop(peer, None)
        for peer in sorted(times.let_down - self._let_down.keys()):
            keep(self._let_down, peer, None, MAX_LET_DOWN)
            self.report.fault(peer, "state_withheld")


def _listed(peers: Sequence[str]) -> str:
    return f"{', '.join(peers[:-1])} and {peers[-1]}" if len(peers) > 1 else "".join(peers)
