"""Dial-back: members dial this node on request, and it dials those that ask; the results decide what it announces.

A node that cannot be dialled announces no address: then nobody tries in vain, and a pair of which neither end has one is not chosen
(`may_meet`). Whom a member dials for another cannot be chosen by that other: the host is where the asker's connection comes from, and the
member hangs up as soon as it knows who answers.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from starling.gossip.limits import Rates, keep
from starling.gossip.membership.reachability import MAX_KEPT, Reachability, State
from starling.gossip.membership.sampler import Sampler
from starling.gossip.wire.schema import Dialed, DialMe
from starling.node.daemon.context import NodeContext
from starling.node.daemon.membership.best_effort import BestEffort
from starling.node.daemon.membership.neighbors import Members
from starling.node.interfaces import TaskStatus

CIRCUIT = "/p2p-circuit"
POLL_S = 1.0
BURST, PER_S = 3.0, 1 / 30  # dials for one member: burst, and per second
MAX_ASKING = 4096  # members whose dials are counted
MAX_DIALLING = 4  # concurrent dials for all members; further requests wait
MAX_WAITING = 32
"""Waiting requests; further peers get no answer, and ask again after all of these have been served."""
TEXTS = {
    "reachable": "members can dial this node",
    "hidden": "members cannot dial this node: it is behind a NAT or a firewall, and takes part by dialling them",
}


def is_direct(address: str) -> bool:
    """Return whether an address leads to its peer without a relay."""
    return CIRCUIT not in address


class ReachabilityService:
    """Requests and answers dial-backs, and tells the network the result."""

    def __init__(self, context: NodeContext, members: Members) -> None:
        self._me, self._network, self._report = context.me, context.network, context.report
        self._members = members
        self._core = Reachability()
        self._sampler = Sampler(context.secret_seed("reachability"))
        self._rates: Rates[str] = Rates(PER_S, BURST, MAX_ASKING)
        self._best_effort = BestEffort(context.network)
        self._asked: dict[str, int] = {}  # peer -> nonce
        self._nonce = 0
        self._requests: trio.MemorySendChannel[tuple[str, DialMe]]
        self._requests, self._waiting = trio.open_memory_channel[tuple[str, DialMe]](MAX_WAITING)
        self._where: tuple[tuple[str, ...], int | None] | None = None

    @property
    def state(self) -> State:
        """Return how reachable others found this node."""
        return self._core.state

    def receive(self, peer: str, message: DialMe | Dialed) -> None:
        """Process a member's request to be dialled, or its result of dialling us."""
        if isinstance(message, DialMe):
            if self._rates.take(peer, trio.current_time()):
                try:
                    self._requests.send_nowait((peer, message))
                except trio.WouldBlock:
                    return
        elif self._asked.get(peer) == message.nonce and (source := self._source(peer)) is not None:
            del self._asked[peer]
            self._core.vote(source, message.reached, trio.current_time(), message.seen)

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Request and answer dial-backs until cancelled; nothing where the network has no ports."""
        async with trio.open_nursery() as nursery:
            if self._network.port is not None:
                await nursery.start(self._best_effort.serve)
                for _ in range(MAX_DIALLING):
                    nursery.start_soon(self._answer)
                nursery.start_soon(self._watch)
            task_status.started()

    def may_meet(self, peer: str, addresses: Callable[[str], tuple[str, ...]]) -> bool:
        """Return whether this node and a peer, which announces `addresses`, can exchange: they are connected, other than through a relay
        for control messages only, or one of them can be dialled.
        """
        network, theirs = self._network, addresses(peer)
        if (way := network.way(peer)) is not None:
            return way != "control" or any(map(is_direct, (*network.announced, *theirs)))
        return bool(network.announced or theirs)

    async def _answer(self) -> None:
        async for peer, message in self._waiting.clone():
            seen, reached = await self._network.dial_back(peer, message.port)
            if seen:
                self._best_effort.send_soon(peer, Dialed(message.nonce, seen, reached))

    async def _watch(self) -> None:
        while True:
            self._poll(trio.current_time())
            await trio.sleep(POLL_S)

    def _poll(self, now: float) -> None:
        network, core = self._network, self._core
        if (where := (network.addresses, network.port)) != self._where:
            if self._where is not None:
                core.moved()
            self._where = where
        others = [peer for peer in self._members.members if peer != self._me]
        found = {peer: source for peer in others if (source := self._source(peer)) is not None}
        for peer in network.callers:
            if peer in found:
                core.vote(found[peer], True, now)
        before, state = core.state, core.poll(len(set(found.values())), now)
        network.found(hidden=state == "hidden", host=core.seen)
        self._where = network.addresses, network.port
        if state != before and state in TEXTS:
            self._report.event("reachability", TEXTS[state], state=state)
        if (port := network.port) is None:
            return
        order = self._sampler.sample(tuple(found), len(found))
        for peer in core.ask({each: found[each] for each in order}, now):
            self._nonce += 1
            keep(self._asked, peer, self._nonce, MAX_KEPT)
            self._best_effort.send_soon(peer, DialMe(self._nonce, port))

    def _source(self, peer: str) -> str | None:
        """Return the network that a peer's vote counts for; None: it has no direct connection, or is within our own network while most are
        not.
        """
        origin = self._network.origin(peer)
        return None if origin is None or (not origin and self._network.met_public) else origin or peer
