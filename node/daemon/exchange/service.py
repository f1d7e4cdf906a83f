"""Pairwise exchanges of one node: the shell of `gossip.exchange.pairwise`, which decides; this carries out and waits.

A round (`rounds.py`) or a visit (`visits.py`) is a loop around the core's `tick`, woken by every frame, reply and deadline.
"""

from collections.abc import Callable, Collection, Mapping

import trio

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.commands import Outcome
from starling.gossip.exchange.edge import Edge
from starling.gossip.exchange.estimates import Deadline
from starling.gossip.exchange.pace import Rounds, Slots
from starling.gossip.exchange.pairwise import Pairwise
from starling.gossip.exchange.patience import Patience
from starling.gossip.wire.frames import decode
from starling.gossip.wire.schema import Pulling
from starling.node.config.schema import PaceSection
from starling.node.daemon.context import NodeContext
from starling.node.daemon.exchange.budget import budget_of
from starling.node.daemon.exchange.history import Transactions
from starling.node.daemon.exchange.shell import Shell
from starling.node.daemon.exchange.slow_watch import SlowWatch
from starling.node.daemon.exchange.traffic import PairwiseTraffic
from starling.node.daemon.membership.neighbors import Members
from starling.node.interfaces import TaskStatus
from starling.node.status.snapshot import Exchanges

SEND_S = 60.0  # A peer that takes no frame for so long is unreachable

Noted = Callable[[Mapping[str, Outcome], Collection[str]], None]
"""Takes how the exchanges of a round, or a visit, ended, by peer, and the peers whose update was clipped."""


class Exchange:
    """What pairwise exchanges of a node have in common in both paces.

    `fresh_inc` gives a number in [0, 2**60] for a new incarnation of an edge. `moved` is told (peer, bytes) of every frame, `edge_dropped`
    of a peer that gives up its edge.
    """

    def __init__(
        self, context: NodeContext, members: Members, fresh_inc: Callable[[], int], pace: Rounds | Slots, *, noted: Noted,
        transactions: Transactions, moved: Callable[[str, int], object] = lambda _peer, _bytes: None,
        edge_dropped: Callable[[str], None] = lambda _peer: None,
    ) -> None:  # fmt: skip
        self._watch = SlowWatch(context.report, context.limits)
        self._budget = budget_of(context.manifest, context.limits)
        self._core = core = Pairwise(
            context.me, pace, fresh_inc, greets=lambda peer: peer in members.members, budget=self._budget.bytes_for,
            members=lambda: len(members.roster), receives=context.network.receives,
        )  # fmt: skip
        self._admits = members.admits
        self._noted = noted
        self._traffic = PairwiseTraffic(context.report, self._budget, self._watch, transactions, pace.patience, moved)
        self._shell = Shell(
            context, core, send_s=SEND_S, traffic=self._traffic, transactions=transactions, edge_dropped=edge_dropped,
            called=pace.patience.calls.observe, usual_s=pace.patience.transfers.usual_s,
        )  # fmt: skip

    @property
    def edges(self) -> Mapping[str, Edge]:
        """By peer."""
        return self._core.edges

    @property
    def stats(self) -> Exchanges:
        """How exchanges ended, those of both roles."""
        return Exchanges(**self._core.totals)

    @property
    def payload_bytes(self) -> int:
        """Payload bytes sent in committed exchanges."""
        return self._core.payload_bytes

    @property
    def slow(self) -> str:
        """What became slow, in words; "" if nothing did."""
        return "; ".join(self._watch.words)

    def committed(self, peer: str) -> int:
        """Return the number of exchanges committed with `peer`."""
        return self._core.committed[peer]

    def round_of(self, peer: str) -> int | None:
        """Return the highest round (slot) reported by `peer`."""
        return self._core.pace.progress.rounds.get(peer)

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Answer peers until cancelled."""
        await self._shell.serve(self._receive, self._chase, task_status=task_status)

    def _receive(self, peer: str, frame: bytes | memoryview) -> None:
        if not self._admits(peer):
            return
        message = decode("exchange", peer, frame)
        if isinstance(message, Pulling):
            raise RemoteProtocolError(peer, "wrong_kind_of_exchange")
        commands = self._core.receive(peer, message, trio.current_time())
        self._traffic.received(peer, message, len(frame))
        self._shell.do(commands)

    async def _chase(self) -> None:
        while True:
            await trio.sleep(self._core.pace.patience.deadline.wait_s())
            self._shell.do(self._core.chase())

    async def revoke(self, peer: str) -> None:
        """Delete the flow of a peer that is gone, banned or reborn, what was settled too."""
        core, shell = self._core, self._shell
        edge = core.edges.get(peer)
        self._budget.forget(peer)
        self._watch.forget(peer)
        shell.do(core.revoke(peer, trio.current_time()))
        shell.move()
        await shell.rest(peer)
        if edge is not None and core.edges.get(peer) is edge:
            core.release(peer)

    async def reset_all(self) -> None:
        """Start every edge anew and notify the peers: the engine lost its flows, or holds another model."""
        peers = list(self._core.edges)
        self._shell.do(self._core.reset_all(trio.current_time()))
        self._shell.move()
        for peer in peers:
            await self._shell.rest(peer)


def patience_of(pace: PaceSection, longest_s: float, members: Members) -> Patience:
    """Return the deadlines of exchanges that take at most `longest_s`."""
    deadline = Deadline(min(pace.min_wait_s, longest_s), longest_s)
    return Patience(deadline, members.silent, members.lately_gone)
