"""Pairwise exchanges of one node, whose core is `gossip.exchange.pairwise`.

A round (`rounds.py`) or a visit (`visits.py`) is a loop around the core's `tick`, woken by every frame, reply and deadline.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.edge import Edge
from starling.gossip.exchange.estimates import Deadline
from starling.gossip.exchange.link_deadlines import LinkDeadlines
from starling.gossip.exchange.pace import Rounds, Slots
from starling.gossip.exchange.pairwise import Pairwise
from starling.gossip.wire.frames import decode
from starling.gossip.wire.schema import PulledMessage
from starling.node.config.schema import PaceSection
from starling.node.daemon.context import NodeContext
from starling.node.daemon.exchange.budget import budget_of
from starling.node.daemon.exchange.durations import Durations
from starling.node.daemon.exchange.facts import About, Noted, Received, Subscriber
from starling.node.daemon.exchange.mute_watch import MuteWatch
from starling.node.daemon.exchange.service import ExchangeService
from starling.node.daemon.exchange.slow_watch import SlowWatch
from starling.node.daemon.membership.neighbors import Members
from starling.node.status.snapshot import Exchanges

SEND_S = 60.0  # seconds after which a peer that takes no frame counts as unreachable


class PairwiseExchange(ExchangeService[Pairwise]):
    """Common part of pairwise exchanges in both paces.

    `fresh_inc` gives a number in [0, 2**60] for a new incarnation of an edge.
    """

    def __init__(
        self,
        context: NodeContext,
        members: Members,
        fresh_inc: Callable[[], int],
        pace: Rounds | Slots,
        noted: Noted,
        subscribers: Sequence[Subscriber],
    ) -> None:
        self._watch = SlowWatch(context.report, context.limits)
        self._mute = MuteWatch(context.report, pace.link_deadlines.mute_since)
        self._budget = budget_of(context.manifest, context.limits)
        core = Pairwise(
            context.me,
            pace,
            fresh_inc,
            greets=lambda peer: peer in members.members,
            budget=self._budget.bytes_for,
            members=lambda: len(members.roster),
            receives=context.network.receives,
        )
        self._admits = members.admits
        self._noted = noted
        durations = Durations(context.report, pace.link_deadlines)
        told = (*subscribers, self._budget.observe, self._watch.observe, durations.observe)
        super().__init__(context, core, told, send_s=SEND_S, usual_s=pace.link_deadlines.transfers.usual_s)

    @property
    def edges(self) -> Mapping[str, Edge]:
        """Return the edges by peer."""
        return self._core.edges

    @property
    def stats(self) -> Exchanges:
        """Return counts of how exchanges ended, in both roles."""
        return Exchanges(**self._core.totals)

    @property
    def payload_bytes(self) -> int:
        """Return the payload bytes sent in committed exchanges."""
        return self._core.payload_bytes

    @property
    def slow(self) -> str:
        """Return a description of what became slow, and of peers that say nothing; "" without any."""
        return "; ".join((*self._mute.words, *self._watch.words))

    def committed(self, peer: str) -> int:
        """Return the number of exchanges committed with `peer`."""
        return self._core.committed[peer]

    def round_of(self, peer: str) -> int | None:
        """Return the highest round (slot) reported by `peer`."""
        return self._core.pace.progress.rounds.get(peer)

    @property
    def lead(self) -> int:
        """Return the largest round (slot) that more peers report than may lie."""
        return self._core.pace.progress.lead

    def _tasks(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return (self._chase,)

    def _receive(self, peer: str, frame: bytes | memoryview) -> None:
        if not self._admits(peer):
            return
        message = decode("exchange", peer, frame)
        if isinstance(message, PulledMessage):
            raise RemoteProtocolError(peer, "wrong_kind_of_exchange")
        commands = self._core.receive(peer, message, trio.current_time())
        self._tell(Received(About(peer, type(message), *message.figures), len(frame)))
        self.carry_out(commands)

    async def _chase(self) -> None:
        while True:
            await trio.sleep(self._core.pace.link_deadlines.deadline.wait_s())
            self.carry_out(self._core.chase())

    async def revoke(self, peer: str) -> None:
        """Delete the flow of a peer that is gone, banned or restarted, settled flows too."""
        core = self._core
        edge = core.edges.get(peer)
        self._budget.forget(peer)
        self._watch.forget(peer)
        self.carry_out(core.revoke(peer, trio.current_time()))
        self._move()
        await self._rest(peer)
        if edge is not None and core.edges.get(peer) is edge:
            core.release(peer)

    async def reset_all(self) -> None:
        """Reset every edge and notify the peers: the engine lost its flows, or has another model."""
        peers = list(self._core.edges)
        self.carry_out(self._core.reset_all(trio.current_time()))
        self._move()
        for peer in peers:
            await self._rest(peer)


def link_deadlines_of(pace: PaceSection, longest_s: float, members: Members) -> LinkDeadlines:
    """Return the deadlines of exchanges that take at most `longest_s`."""
    deadline = Deadline(min(pace.min_wait_s, longest_s), longest_s)
    return LinkDeadlines(deadline, members.silent, members.lately_gone)
