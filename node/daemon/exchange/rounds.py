"""Pace "steps": a round's exchanges, one on each link, then Mix, once the engine has replied to all calls of the edges."""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio

from starling.gossip.exchange.pace import Rounds
from starling.gossip.exchange.pairwise import MAX_LEAD
from starling.gossip.overlay.periodic import Periodic
from starling.node.config.overlay import overlay_of
from starling.node.config.schema import Manifest
from starling.node.daemon.context import NodeContext
from starling.node.daemon.exchange.facts import Noted, Subscriber
from starling.node.daemon.exchange.outcome import RoundOutcome, Waited
from starling.node.daemon.exchange.pairwise import PairwiseExchange, link_deadlines_of
from starling.node.daemon.membership.neighbors import Members


class RoundExchange(PairwiseExchange):
    """Pairwise exchanges by rounds. `directions` gives the (give, take) of a round's links where they differ; the rest as in
    `PairwiseExchange`.
    """

    def __init__(
        self,
        context: NodeContext,
        members: Members,
        fresh_inc: Callable[[], int],
        noted: Noted,
        subscribers: Sequence[Subscriber],
        directions: Callable[[int], Mapping[str, tuple[float, float]]],
    ) -> None:
        super().__init__(context, members, fresh_inc, rounds_of(context.manifest, members), noted, subscribers)
        self._probe_now = members.probe_now
        self._directions = directions

    def computing(self, round: int, links: Mapping[str, float], view: bytes, since: float | None = None) -> None:
        """Note that local steps of `round` begin, or began at `since`; arguments as in `Pairwise.compute`."""
        self._probe_now(links)
        self.carry_out(self._core.compute(round, links, view, trio.current_time() if since is None else since))

    async def round(
        self,
        round: int,
        links: Mapping[str, float],
        view: bytes,
        before_mix: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
        concurrent_s: float = 0.0,
    ) -> RoundOutcome:
        """Do all exchanges of a round whose local steps are done, then Mix; arguments as in `Pairwise.compute`.

        `before_mix` is awaited between the two, and is expected to take `beside_s` from now; 0: nobody knows. Raises EngineError: the
        engine cannot mix.
        """
        core, began = self._core, trio.current_time()
        self._budget.concurrent_s = concurrent_s or math.inf
        self.carry_out(core.begin_round(round, links, view, trio.current_time(), self._directions(round)))
        usual_s = core.pace.link_deadlines.usual_s()

        def look() -> None:
            if trio.current_time() > began + usual_s:
                self._probe_now(core.pace.waiting, late=True)

        try:
            awaited = await self._until_done(look)
        finally:
            # peers are waited for until the deadline at most: anything later is this node's own delay
            waited_s = min(trio.current_time(), core.pace.link_deadlines.expires) - began - core.pace.link_deadlines.usual_s()
            self.carry_out(core.end(trio.current_time()))
        self._mute.look()
        outcomes = dict(core.pace.outcomes)
        for peer in list(core.edges):
            await self._rest(peer)
        self._noted(outcomes, core.take_clipped(outcomes))
        behind = core.left_behind(round)
        await before_mix()
        mixed = await self._mix(round)
        return RoundOutcome(round, outcomes, behind, mixed.distance, waited=Waited(max(0.0, waited_s), awaited))

    def left_behind(self, round: int, missed_rounds: int) -> int:
        """Return the round that peers have reached, as `Pairwise` does."""
        return self._core.left_behind(round, missed_rounds)


def rounds_of(manifest: Manifest, members: Members) -> Rounds:
    """Return the pace of pairwise exchanges by rounds."""
    overlay = overlay_of(manifest)
    link_deadlines = link_deadlines_of(manifest.pace, manifest.pace.max_wait_s, members)
    return Rounds(link_deadlines, MAX_LEAD, same_roster=not overlay.symmetric or isinstance(overlay, Periodic))
