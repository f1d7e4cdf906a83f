"""Pairwise exchanges of one node: the shell of `gossip.exchange.pairwise`. That decides; this carries out and waits.

A round or a visit is a loop around the core's `tick`, woken by every frame, reply and deadline. A round's end waits for the engine to have
replied to all calls of the edges, then mixes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b

import trio

from starling.gossip.errors import EngineError, RemoteProtocolError
from starling.gossip.exchange.commands import Outcome
from starling.gossip.exchange.edge import Edge
from starling.gossip.exchange.pairwise import MAX_LEAD, Pairwise
from starling.gossip.exchange.rounds import Rounds
from starling.gossip.exchange.slots import Slots
from starling.gossip.exchange.timeouts import TRIES, Deadline, Timeouts
from starling.gossip.overlay.sticky import StickyEdges
from starling.gossip.wire.frames import decode
from starling.gossip.wire.schema import Pulling
from starling.node.config.schema import Manifest
from starling.node.daemon.context import NodeContext
from starling.node.daemon.exchange.api import ExchangeMembers, RoundOutcome
from starling.node.daemon.exchange.budget import Budget
from starling.node.daemon.exchange.history import Transactions
from starling.node.daemon.exchange.shell import Shell
from starling.node.interfaces import TaskStatus
from starling.node.rpc import calls
from starling.node.status.snapshot import Exchanges

SEND_S = 60.0
"""A peer that takes no frame for so long is unreachable."""


class Exchange:
    """All pairwise exchanges of one node; satisfies `starling.node.daemon.exchange.api.Meetings`.

    Args:
        context: the node's.
        membership: who may exchange with this node.
        fresh_inc: a random number in [0, 2**60] for a new incarnation of an edge.
        directions: steps pace: (give, take) of a round's links, where they are not the same both ways.
        noted: called with how the exchanges of a round, or a visit, ended, by peer, and with whom they were clipped.
        transactions: the history of exchanges, for the status.
        sticky: clock pace: decides which peers that call may have an edge, and is called when one gives it up; by default all may.
    """

    def __init__(
        self, context: NodeContext, membership: ExchangeMembers, fresh_inc: Callable[[], int], *,
        directions: Callable[[int], Mapping[str, tuple[float, float]]] = lambda _round: {},
        noted: Callable[[Mapping[str, Outcome], Collection[str]], None] = lambda _outcomes, _clipped: None,
        transactions: Transactions | None = None, sticky: StickyEdges | None = None,
    ) -> None:  # fmt: skip
        self._budget = budget = Budget(context.manifest, context.config)
        pace = _pace(context.manifest, context.swarm, sticky)
        self._core = core = Pairwise(context.me, pace, fresh_inc, lambda peer: peer in membership.members, budget)
        self._engine = context.engine
        self._admits = membership.admits
        self.sticky = sticky
        self._directions = directions
        self._noted = noted
        self._transactions = transactions if transactions is not None else Transactions()
        self._shell = Shell(
            context.network, context.engine, context.report, send_s=SEND_S, reply=core.reply, unreachable=core.unreachable,
            sent=lambda peer, _message, count, seconds: budget.observe(peer, count, seconds), transactions=self._transactions,
            edge_dropped=sticky.drop if sticky is not None else lambda _peer: None,
        )  # fmt: skip

    # --- status -------------------------------------------------------------------------------------------

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
    def behind(self) -> int:
        """The round (slot) that peers have credibly reached."""
        return self._core.pace.progress.lead

    def committed(self, peer: str) -> int:
        """Exchanges committed with `peer`."""
        return self._core.committed[peer]

    def round_of(self, peer: str) -> int | None:
        """Highest round (slot) reported by `peer`."""
        return self._core.pace.progress.rounds.get(peer)

    # --- the service --------------------------------------------------------------------------------------

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Answer peers until cancelled."""
        await self._shell.serve(self._receive, self._chase, task_status=task_status)

    def _receive(self, peer: str, frame: bytes | bytearray) -> None:
        if not self._admits(peer):
            return
        message = decode("exchange", peer, frame)
        if isinstance(message, Pulling):
            raise RemoteProtocolError(peer, "wrong_kind_of_exchange")
        commands = self._core.receive(peer, message, trio.current_time())
        self._transactions.received(peer, message)
        self._shell.do(commands)

    async def _chase(self) -> None:
        while True:
            await trio.sleep(self._core.pace.timeouts.deadline.wait_s())
            self._shell.do(self._core.chase())

    async def _until_done(self) -> None:
        """Wait until every link is resolved."""
        core, shell = self._core, self._shell
        shell.do(core.tick(trio.current_time()))
        while not core.done:
            with trio.move_on_at(core.deadline):
                await shell.moved()
            shell.do(core.tick(trio.current_time()))

    # --- steps pace ---------------------------------------------------------------------------------------

    def computing(self, round: int, links: Mapping[str, float], view: bytes) -> None:
        """Local steps of `round` begin; arguments as in `Pairwise.compute`."""
        self._shell.do(self._core.compute(round, links, view, trio.current_time()))

    async def round(self, round: int, links: Mapping[str, float], view: bytes) -> RoundOutcome:
        """All exchanges of a round whose local steps are done, then Mix; arguments as in `Pairwise.compute`.

        Raises:
            EngineError: the engine cannot mix.
        """
        core, shell = self._core, self._shell
        shell.do(core.begin_round(round, links, view, trio.current_time(), self._directions(round)))
        try:
            await self._until_done()
        finally:
            shell.do(core.end_round(trio.current_time()))
        outcomes = dict(core.outcomes)
        for peer in list(core.edges):
            await shell.rest(peer)
        self._noted(outcomes, core.take_clipped(outcomes))
        reply = await self._engine.call(calls.Mix(round))
        if not isinstance(reply, calls.Done):
            raise EngineError(f"round {round} was not mixed: {reply}")
        return RoundOutcome(round, outcomes, core.left_behind(round), reply.distance)

    # --- clock pace ---------------------------------------------------------------------------------------

    async def contact_next(self, edges: Iterable[str], slot: int) -> Outcome | None:
        """Visit the next of our edges in this slot. -> how it ended, None if there is none to visit"""
        peer = self._core.next_visit(edges)
        self._shell.do(self._core.enter_slot(slot, trio.current_time()))
        return None if peer is None else await self.contact(peer, slot)

    async def contact(self, peer: str, slot: int) -> Outcome:
        """Visit one peer: begin an exchange, or ask it to begin. -> how it ended"""
        core, shell = self._core, self._shell
        shell.do(core.enter_slot(slot, trio.current_time()))
        shell.do(core.visit(peer, trio.current_time()))
        try:
            await self._until_done()
        finally:
            shell.do(core.end(trio.current_time()))
        outcome = core.outcomes[peer]
        self._noted({peer: outcome}, core.take_clipped([peer]))
        return outcome

    # --- membership and engine ----------------------------------------------------------------------------

    async def settle(self, peer: str) -> bool:
        """Close the edge in order; the caller sets the deadline. -> its flow is settled; else it was deleted, or there was none"""
        core, shell = self._core, self._shell
        edge = core.edges.get(peer)
        if edge is None:
            return False
        inc = edge.inc
        shell.do(core.close(peer, trio.current_time()))
        while edge.closing:
            with trio.move_on_after(core.pace.timeouts.deadline.wait_s() / TRIES):
                await self._closed(edge)
            shell.do(core.retry_close(peer))
        await shell.rest(peer)
        return edge.settled is not None and edge.settled[0] == inc

    async def _closed(self, edge: Edge) -> None:
        while edge.closing:
            await self._shell.moved()

    async def revoke(self, peer: str) -> None:
        """The peer is gone, banned or reborn: delete its flow, what was settled too."""
        core = self._core
        edge = core.edges.get(peer)
        self._budget.forget(peer)
        self._shell.do(core.revoke(peer, trio.current_time()))
        self._shell.move()
        await self._shell.rest(peer)
        if edge is not None and core.edges.get(peer) is edge:
            core.release(peer)

    async def reset_all(self) -> None:
        """The engine holds no flow any more, or none that is worth keeping: start every edge anew and tell the peers."""
        peers = list(self._core.edges)
        self._shell.do(self._core.reset_all(trio.current_time()))
        self._shell.move()
        for peer in peers:
            await self._shell.rest(peer)


def _pace(manifest: Manifest, swarm: str, sticky: StickyEdges | None) -> Rounds | Slots:
    pace = manifest.pace
    longest_s = pace.max_wait_s if pace.kind == "steps" else pace.slot_s  # a visit is over when its slot is
    timeouts = Timeouts(Deadline(min(pace.min_wait_s, longest_s), longest_s))
    if pace.kind == "steps":
        return Rounds(timeouts, MAX_LEAD)
    slots = Slots(timeouts, manifest.mix.theta, blake2b(swarm.encode(), digest_size=16).digest())
    return slots if sticky is None else replace(slots, welcome=sticky.accept)
