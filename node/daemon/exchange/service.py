"""Pairwise exchanges of one node: the shell of `gossip.exchange.pairwise`, which decides; this carries out and waits.

A round or a visit is a loop around the core's `tick`, woken by every frame, reply and deadline. A round's end waits for the engine to have
replied to all calls of the edges, then mixes.
"""

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from statistics import median_low

import trio

from starling.gossip.compress.budget import FILL, exchange_budget
from starling.gossip.compress.catalogue import BUDGET
from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.commands import Outcome
from starling.gossip.exchange.edge import Edge
from starling.gossip.exchange.pace import Rounds, Slots
from starling.gossip.exchange.pairwise import MAX_LEAD, Pairwise
from starling.gossip.exchange.timeouts import TRIES, WHOLE, Deadline, Timeouts
from starling.gossip.limits import keep
from starling.gossip.overlay.api import LastingEdges
from starling.gossip.overlay.periodic import Periodic
from starling.gossip.wire.frames import decode
from starling.gossip.wire.schema import Exchange as Exchanged
from starling.gossip.wire.schema import Pulling
from starling.node.config.overlay import overlay_of
from starling.node.config.schema import Manifest
from starling.node.daemon.context import Limits, NodeContext
from starling.node.daemon.exchange.history import Transactions
from starling.node.daemon.exchange.shell import RoundOutcome, Shell, payload_bytes
from starling.node.daemon.exchange.slow_watch import MIN_MEASURED_BYTES, SlowWatch
from starling.node.daemon.membership.neighbors import Members
from starling.node.interfaces import TaskStatus
from starling.node.status.snapshot import Exchanges

SEND_S = 60.0  # A peer that takes no frame for so long is unreachable
SMOOTHING = 0.3
FIRST_BYTES = 256 << 10
"""Of an exchange before any rate is known, where it is as large as its budget: on a slow line a whole model would be given up half done."""
MAX_MOVED = 256  # peers


class Budget:
    """Bytes per exchange by peer: the manifest's, or as many as the edge was measured to carry in a slot, under the volunteer's caps.

    `beside_s`: how long the local steps take beside which exchanges run, as the round waits for whichever takes longer; inf where there are
    none.
    """

    def __init__(self, manifest: Manifest, limits: Limits) -> None:
        self.beside_s = math.inf
        self._fixed: int | None = manifest.compress.params().get("budget_bytes")
        self._first = FIRST_BYTES if manifest.compress.select == BUDGET else 0
        self._slot_s = manifest.pace.slot_s
        self._limits = limits
        self._rates: dict[str, float] = {}

    def __call__(self, peer: str) -> int:
        """Bytes that both payloads of one exchange with `peer` may take; 0 is no limit.

        With a peer of unknown rate as many as with others; before any rate is known, and without a cap, FIRST_BYTES, or what the selector's
        own keys say.
        """
        if self._fixed:
            return self._fixed
        caps = [cap for cap in (self._limits.up_bytes_per_s, self._limits.down_bytes_per_s) if cap > 0]
        usual = median_low(self._rates.values()) if self._rates else 0.0
        rate = self._rates.get(peer, usual)
        if rate == math.inf and not caps:
            return 0
        return exchange_budget(rate, min(self._slot_s, self.beside_s), FILL, min(caps, default=0)) or self._first

    def observe(self, peer: str, sent_bytes: int, seconds: float) -> None:
        """A frame of `sent_bytes` took `seconds` to be handed to the network."""
        if sent_bytes < MIN_MEASURED_BYTES:
            return
        rate = sent_bytes / seconds if seconds > 0 else math.inf
        known = self._rates.get(peer)
        self._rates[peer] = rate if known in {None, math.inf} else (1 - SMOOTHING) * known + SMOOTHING * rate

    def forget(self, peer: str) -> None:
        """The peer is gone."""
        self._rates.pop(peer, None)


class Exchange:
    """All pairwise exchanges of one node.

    `fresh_inc` gives a number in [0, 2**60] for a new incarnation of an edge, `directions` (steps pace) the (give, take) of a round's
    links, where they differ. `noted` is called with how the exchanges of a round, or a visit, ended, by peer, and with the peers whose
    update was clipped. `sticky` (clock pace) decides which calling peers may have an edge, and is told when one gives it up; None: all may.
    """

    def __init__(
        self, context: NodeContext, members: Members, fresh_inc: Callable[[], int], *,
        directions: Callable[[int], Mapping[str, tuple[float, float]]], transactions: Transactions,
        noted: Callable[[Mapping[str, Outcome], Collection[str]], None], sticky: LastingEdges | None,
    ) -> None:  # fmt: skip
        self._report, self._told_slow = context.report, False
        self._watch = SlowWatch(context.report, context.limits)
        self._budget = budget = Budget(context.manifest, context.limits)
        pace = _pace(context.manifest, context.swarm, sticky, members)
        self._look = members.look
        self._core = core = Pairwise(
            context.me, pace, fresh_inc, greets=lambda peer: peer in members.members, budget=budget,
            members=lambda: len(members.roster), receives=context.network.receives,
        )  # fmt: skip
        self._admits = members.admits
        self.sticky = sticky
        self._directions = directions
        self._noted = noted
        self._transactions = transactions
        self._moved_bytes: dict[str, int] = {}  # by peer, since it was last visited
        self._shell = Shell(
            context, core, send_s=SEND_S, transactions=transactions,
            sent=self._measure, called=core.pace.timeouts.calls.observe, usual_s=core.pace.timeouts.transfers.usual_s,
            edge_dropped=sticky.drop if sticky is not None else lambda _peer: None,
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

    @property
    def longest_s(self) -> float:
        """Clock pace: the longest that a visit may take; two slots, or more where payloads take so long to be sent."""
        pace = self._core.pace
        assert isinstance(pace, Slots)
        return pace.longest_s

    def committed(self, peer: str) -> int:
        """Exchanges committed with `peer`."""
        return self._core.committed[peer]

    def round_of(self, peer: str) -> int | None:
        """Highest round (slot) reported by `peer`."""
        return self._core.pace.progress.rounds.get(peer)

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Answer peers until cancelled."""
        await self._shell.serve(self._receive, self._chase, task_status=task_status)

    def _receive(self, peer: str, frame: bytes | memoryview) -> None:
        if not self._admits(peer):
            return
        message = decode("exchange", peer, frame)
        self._moved(peer, len(frame))
        if isinstance(message, Pulling):
            raise RemoteProtocolError(peer, "wrong_kind_of_exchange")
        commands = self._core.receive(peer, message, trio.current_time())
        self._watch.received(peer, message)
        self._transactions.received(peer, message)
        self._shell.do(commands)

    def _measure(self, peer: str, message: Exchanged | Pulling, count: int, seconds: float) -> None:
        """A frame was handed to the network: learn the peer's rate, and how long exchanges may take."""
        self._budget.observe(peer, count, seconds)
        self._moved(peer, count)
        self._watch.sent(peer, message, count, seconds)
        if not (size := payload_bytes(message)):
            return
        timeouts = self._core.pace.timeouts
        timeouts.transfers.observe(peer, seconds, size)
        most_s = timeouts.deadline.max_wait_s
        if WHOLE * timeouts.transfers.usual_s() > most_s and not self._told_slow:
            self._told_slow = True
            text = (
                f"a payload takes {timeouts.transfers.usual_s():,.1f} s to be sent, too long for exchanges of {most_s:g} s: they get "
                f"up to {timeouts.longest_s:,.1f} s and are as much rarer; a higher cap (`starling limits --up`), or in the next manifest "
                "a smaller compress.budget_bytes or a longer pace.slot_s, makes them frequent"
            )
            self._report.event("exchanges_slow", text, level="warning")

    def _moved(self, peer: str, count: int) -> None:
        if self.sticky is not None:
            keep(self._moved_bytes, peer, self._moved_bytes.get(peer, 0) + count, MAX_MOVED)

    def _rate(self, peer: str, outcome: Outcome, seconds: float) -> None:
        """How fast a visit was, for who chooses edges by it: bytes both ways over all of its time, the peer's computing included."""
        moved = self._moved_bytes.pop(peer, 0)
        if self.sticky is not None and outcome in {"committed", "timeout"}:
            self.sticky.measured(peer, moved / seconds if outcome == "committed" and seconds > 0.0 else 0.0)

    async def _chase(self) -> None:
        while True:
            await trio.sleep(self._core.pace.timeouts.deadline.wait_s())
            self._shell.do(self._core.chase())

    def computing(self, round: int, links: Mapping[str, float], view: bytes, since: float | None = None) -> None:
        """Local steps of `round` begin, or began at `since`; arguments as in `Pairwise.compute`."""
        self._look(links)
        self._shell.do(self._core.compute(round, links, view, trio.current_time() if since is None else since))

    async def round(
        self, round: int, links: Mapping[str, float], view: bytes,
        before_mix: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint, beside_s: float = 0.0,
    ) -> RoundOutcome:  # fmt: skip
        """All exchanges of a round whose local steps are done, then Mix; arguments as in `Pairwise.compute`.

        `before_mix` is awaited between the two, and is expected to take `beside_s` from now; 0: nobody knows. Raises EngineError: the
        engine cannot mix.
        """
        core, shell, began = self._core, self._shell, trio.current_time()
        self._budget.beside_s = beside_s or math.inf
        shell.do(core.begin_round(round, links, view, trio.current_time(), self._directions(round)))
        usual_s = core.pace.timeouts.usual_s()

        def look() -> None:
            if trio.current_time() > began + usual_s:
                self._look(core.pace.waiting, late=True)

        try:
            await shell.until_done(look)
        finally:
            # nobody is waited for beyond the deadline: what is later is this node's own delay
            waited_s = min(trio.current_time(), core.pace.timeouts.expires) - began - core.pace.timeouts.usual_s()
            shell.do(core.end(trio.current_time()))
        outcomes = dict(core.pace.outcomes)
        for peer in list(core.edges):
            await shell.rest(peer)
        self._noted(outcomes, core.take_clipped(outcomes))
        behind = core.left_behind(round)
        await before_mix()
        mixed = await shell.mix(round)
        return RoundOutcome(round, outcomes, behind, mixed.distance, waited_s=max(0.0, waited_s))

    def left_behind(self, round: int, reach: int) -> int:
        """As of `Pairwise`."""
        return self._core.left_behind(round, reach)

    async def contact_next(self, edges: Iterable[str], slot: int) -> Outcome | None:
        """Visit the next of our edges in this slot. -> how it ended, None if there is none to visit"""
        peer = self._core.next_visit(edges)
        self._shell.do(self._core.enter_slot(slot, trio.current_time()))
        return None if peer is None else await self.contact(peer, slot)

    async def contact(self, peer: str, slot: int) -> Outcome:
        """Visit one peer: begin an exchange, or ask it to begin. -> how it ended"""
        core, shell, began = self._core, self._shell, trio.current_time()
        self._moved_bytes.pop(peer, None)
        shell.do(core.enter_slot(slot, trio.current_time()))
        shell.do(core.visit(peer, trio.current_time()))
        try:
            await shell.until_done()
        finally:
            shell.do(core.end(trio.current_time()))
            self._rate(peer, core.pace.outcomes.get(peer, "timeout"), trio.current_time() - began)
        outcome = core.pace.outcomes[peer]
        self._noted({peer: outcome}, core.take_clipped([peer]))
        return outcome

    async def settle(self, peer: str) -> bool:
        """Close the edge in order; the caller sets the deadline. -> its flow is settled; else it was deleted, or there was none"""
        core, shell = self._core, self._shell
        edge = core.edges.get(peer)
        if edge is None:
            return False
        inc = edge.inc
        shell.do(core.close(peer, trio.current_time()))

        async def closed() -> None:
            while edge.closing:
                await shell.moved()

        while edge.closing:
            with trio.move_on_after(core.pace.timeouts.deadline.wait_s() / TRIES):
                await closed()
            shell.do(core.retry_close(peer))
        await shell.rest(peer)
        return edge.settled is not None and edge.settled[0] == inc

    async def revoke(self, peer: str) -> None:
        """The peer is gone, banned or reborn: delete its flow, what was settled too."""
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
        """The engine lost its flows, or holds another model: start every edge anew and notify the peers."""
        peers = list(self._core.edges)
        self._shell.do(self._core.reset_all(trio.current_time()))
        self._shell.move()
        for peer in peers:
            await self._shell.rest(peer)


def _pace(manifest: Manifest, swarm: str, sticky: LastingEdges | None, members: Members) -> Rounds | Slots:
    pace = manifest.pace
    longest_s = pace.max_wait_s if pace.kind == "steps" else pace.slot_s  # a visit is over when its slot is
    timeouts = Timeouts(Deadline(min(pace.min_wait_s, longest_s), longest_s), members.silent, members.lately_gone)
    if pace.kind == "steps":
        overlay = overlay_of(manifest)
        return Rounds(timeouts, MAX_LEAD, same_roster=not overlay.symmetric or isinstance(overlay, Periodic))
    slots = Slots(timeouts, manifest.mix.theta, blake2b(swarm.encode(), digest_size=16).digest())
    return slots if sticky is None else replace(slots, welcome=sticky.accept)
