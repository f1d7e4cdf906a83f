"""Pace "clock": visits, one at a time, over lasting edges; a visit ends with its slot."""

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

import trio

from starling.gossip.exchange.commands import EdgeDropped, Outcome
from starling.gossip.exchange.link_deadlines import RETRIES
from starling.gossip.exchange.pace import Slots
from starling.gossip.limits import keep
from starling.gossip.overlay.api import LastingEdges
from starling.node.config.schema import Manifest
from starling.node.daemon.context import NodeContext
from starling.node.daemon.exchange.facts import About, Fact, Noted, Received, Sent, Subscriber
from starling.node.daemon.exchange.pairwise import PairwiseExchange, link_deadlines_of
from starling.node.daemon.membership.neighbors import Members

MAX_MOVED = 256  # peers


class VisitExchange(PairwiseExchange):
    """Pairwise exchanges by visits.

    `sticky` decides which calling peers may have an edge, is told who gives one up, and how fast visits were; the rest as in
    `PairwiseExchange`.
    """

    def __init__(
        self,
        context: NodeContext,
        members: Members,
        fresh_inc: Callable[[], int],
        noted: Noted,
        subscribers: Sequence[Subscriber],
        sticky: LastingEdges,
    ) -> None:
        self.sticky = sticky
        self._slots = slots = slots_of(context.manifest, context.swarm, sticky, members)
        self._moved_bytes: dict[str, int] = {}  # payload bytes by peer since its last visit
        super().__init__(context, members, fresh_inc, slots, noted, (*subscribers, self._observe))

    @property
    def longest_s(self) -> float:
        """Return the longest time of a visit: two slots, or more where payloads take so long to be sent."""
        return self._slots.longest_s

    def _observe(self, fact: Fact) -> None:
        match fact:
            case Received(About(peer=peer), count) | Sent(About(peer=peer), count):
                keep(self._moved_bytes, peer, self._moved_bytes.get(peer, 0) + count, MAX_MOVED)
            case EdgeDropped(peer):
                self.sticky.drop(peer)

    def _rate(self, peer: str, outcome: Outcome, seconds: float) -> None:
        """Report the rate of a visit: bytes both ways over its whole time, including the peer's computing."""
        moved = self._moved_bytes.pop(peer, 0)
        if outcome in {"committed", "timeout"}:
            self.sticky.measured(peer, moved / seconds if outcome == "committed" and seconds > 0.0 else 0.0)

    async def contact_next(self, edges: Iterable[str], slot: int) -> Outcome | None:
        """Visit the next of our edges in this slot -> the outcome, None if there is none to visit."""
        peer = self._core.next_visit(edges)
        self.carry_out(self._core.enter_slot(slot, trio.current_time()))
        return None if peer is None else await self.contact(peer, slot)

    async def contact(self, peer: str, slot: int) -> Outcome:
        """Visit one peer: begin an exchange, or ask it to begin -> the outcome."""
        core, began = self._core, trio.current_time()
        self._moved_bytes.pop(peer, None)
        self.carry_out(core.enter_slot(slot, trio.current_time()))
        self.carry_out(core.visit(peer, trio.current_time()))
        try:
            await self._until_done()
        finally:
            self.carry_out(core.end(trio.current_time()))
            self._rate(peer, core.pace.outcomes.get(peer, "timeout"), trio.current_time() - began)
        outcome = core.pace.outcomes[peer]
        self._noted({peer: outcome}, core.take_clipped([peer]))
        return outcome

    async def settle(self, peer: str) -> bool:
        """Close the edge in order; the caller sets the deadline -> whether its flow is settled, instead of deleted or missing."""
        core = self._core
        edge = core.edges.get(peer)
        if edge is None:
            return False
        inc = edge.inc
        self.carry_out(core.close(peer, trio.current_time()))

        async def closed() -> None:
            while edge.closing:
                await self._happened.wait()

        while edge.closing:
            with trio.move_on_after(core.pace.link_deadlines.deadline.wait_s() / RETRIES):
                await closed()
            self.carry_out(core.retry_close(peer))
        await self._rest(peer)
        return edge.settled is not None and edge.settled[0] == inc


def slots_of(manifest: Manifest, swarm: str, sticky: LastingEdges, members: Members) -> Slots:
    """Return the pace of pairwise exchanges by visits."""
    link_deadlines = link_deadlines_of(manifest.pace, manifest.pace.slot_s, members)
    return Slots(link_deadlines, manifest.mix.theta, blake2b(swarm.encode(), digest_size=16).digest(), welcome=sticky.accept)
