"""Sampled rounds of one node: the shell of `gossip.exchange.sampled`, which decides about turns, over pulled exchanges.

The node sleeps until `due`; then `take` pulls and combines the vectors of the previous turn, training does the turn's local steps, and
`publish` signs the vector and hands over. A background task wakes the next members and replaces slow ones.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from starling.gossip.exchange.attestation import statement_of
from starling.gossip.exchange.sampled import Due, Sampled, Sampling
from starling.gossip.overlay.ranks import ranked
from starling.gossip.wire.schema import Claim, Wake
from starling.node.daemon.context import NodeContext
from starling.node.daemon.exchange.facts import Noted, Subscriber
from starling.node.daemon.exchange.pull_service import PulledExchange, Signing
from starling.node.daemon.membership.neighbors import Members
from starling.node.rpc import calls

STALE_S = 1.0  # an order is recomputed after at most this time, as bans change it without a change of members
ORDERS = 8  # kept


@dataclass(frozen=True, slots=True)
class Orders:
    """The inputs from which the order of members for a turn is computed."""

    salt: Callable[[int], bytes]
    """Gives that of a round."""
    allowed: Callable[[str], bool]
    """Whether a member may do a turn."""
    is_member: Callable[[str], bool]
    """Whether a peer is known as one, alive or not."""


class SampledExchange(PulledExchange):
    """One node's part in sampled rounds; arguments as in `PulledExchange`."""

    exact = True

    def __init__(
        self, context: NodeContext, members: Members, signing: Signing, noted: Noted, subscribers: Sequence[Subscriber], orders: Orders
    ) -> None:
        super().__init__(context, members, signing, noted, subscribers)
        pace = context.manifest.pace
        aggregates = pace.aggregators if context.manifest.robust.rule != "mean" else 1
        self.sampling = Sampling(pace.sample, pace.aggregators, pace.success, pace.slack, pace.rounds, aggregates=max(1, aggregates))
        self._members = members
        self._drawn_from = orders
        self._orders: dict[tuple[bytes, int, int], tuple[str, ...]] = {}
        self._used: tuple[str, ...] = ()  # peers whose vectors the model was made of
        self._turns = Sampled(
            context.me, context.swarm, self.sampling, self._order, signing.verify, orders.is_member, pace.min_wait_s, pace.max_wait_s
        )

    def _order(self, turn: int) -> tuple[str, ...]:
        key = (self._members.view, turn, int(trio.current_time() / STALE_S))
        if (order := self._orders.get(key)) is None:
            while len(self._orders) >= ORDERS:
                del self._orders[next(iter(self._orders))]
            me = self._context.me
            those = [peer for peer in self._members.roster if peer == me or self._drawn_from.allowed(peer)]
            salt = b"turn" + turn.to_bytes(8, "little") + self._drawn_from.salt(self.sampling.round(turn))
            order = self._orders[key] = ranked(those, salt)
        return order

    @property
    def turn(self) -> int:
        """Return the latest turn that this node knows of; statements are of turns, not of rounds."""
        return max(self._turns.known, self._turns.ours)

    @property
    def resting(self) -> bool:
        """Return whether the owner wants no turns, which others then do."""
        return self._turns.resting

    @resting.setter
    def resting(self, rests: bool) -> None:
        self._turns.resting = rests
        self._move()

    def _tasks(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return (self._watch,)

    async def _watch(self) -> None:
        """Wake the members of the next turn."""
        while True:
            self.carry_out(self._turns.tick(trio.current_time()))
            with trio.move_on_at(self._turns.tick_at):
                await self._happened.wait()

    def _wake(self, peer: str, wake: Wake) -> None:
        answers, claims = self._turns.receive(peer, wake, trio.current_time())
        self.carry_out(answers)
        for it in claims:
            # of a life that its record does not tell of anybody can sign any number
            if self._members.incarnation_of(it.peer) == it.incarnation:
                self._attested(statement_of(it, self._context.swarm))

    async def begin(self, round: int) -> None:
        """Take part, with a model that is the average of the round before this one if it is not the initial one."""
        self.carry_out(self._turns.begin(trio.current_time()))
        if round > 0:
            await self._engine.call(calls.Train(round, 0))
            await self.publish(self.sampling.stride * round - 1)

    async def due(self) -> Due:
        """Sleep until this node is to do a turn; it is taken on."""
        while (due := self._turns.due(trio.current_time())) is None:
            with trio.move_on_at(self._turns.due_at):
                await self._happened.wait()
        self._turns.take_on(due, trio.current_time())
        return due

    async def take(self, due: Due) -> bool:
        """Pull and combine the vectors from which a turn starts; return whether there were enough; otherwise the turn is abandoned.

        Raises EngineError: the engine was lost.
        """
        core, sampling, me = self._core, self.sampling, self._context.me
        sources = due.sources[: sampling.taken(due.turn - 1)]
        others, done = [peer for peer in sources if peer != me], -(-due.turn // sampling.stride)
        await self._engine.call(calls.Train(done, 0))  # freezes our own vector: only then others' are received
        late = await self._pull(due, others) if others else ()
        had = sorted(peer for peer in others if core.outcomes.get(peer) == "committed")
        self._committed.update(had)
        self._turns.delivered(had)
        missing = set(others) - set(had)
        self._turns.withheld(peer for peer in missing if peer in late or core.outcomes.get(peer) != "busy")
        enough = len(had) + (me in sources) >= min(sampling.needed(due.turn - 1), len(sources))
        if not (had or me in sources) or (missing and not enough):
            self._turns.give_up(due, missing, trio.current_time())
            return False
        self._used = (*had, *((me,) if me in sources else ()))
        if had:
            mixed = await self._mix(done - 1, tuple(had), own=me in sources)
            self._noted({peer: core.outcomes[peer] for peer in others}, mixed.clipped_or_excluded)
        return True

    async def _pull(self, due: Due, others: Sequence[str]) -> tuple[str, ...]:
        """Pull vectors of the turn before -> the peers that were awaited last, if for longer than is usual."""
        core = self._core
        await self._expect(-(-due.turn // self.sampling.stride))
        began = trio.current_time()
        self.carry_out(core.ask(due.turn - 1, others, began))
        try:
            awaited = await self._until_done(self._telling(due.turn - 1))
        finally:
            usual_s = core.link_deadlines.usual_s()
            core.close()
        self._outcomes.update(core.outcomes.values())
        return awaited if trio.current_time() - began > usual_s else ()

    async def _expect(self, round: int) -> None:
        """Learn from our own vector how long others' may be."""
        if not self._longest:
            reply = await self._engine.call(calls.Publish(round))
            if isinstance(reply, calls.Published):
                self._longest = max(len(reply.payload), reply.longest)

    async def publish(self, turn: int) -> bool:
        """Sign the frozen vector as that of a turn, and hand over; return whether it could be encoded.

        Raises EngineError: the engine was lost.
        """
        if not self._core.publishable(turn) or not await self._publish(turn):
            return False
        published = self._core.newest
        claim = Claim(self._context.me, published.incarnation, turn, published.digest, published.signature)
        used, self._used = self._used, ()
        self.carry_out(self._turns.publish(claim, used, trio.current_time()))
        self._move()
        return True

    def give_up(self, due: Due) -> None:
        """The engine was lost meanwhile."""
        self._turns.give_up(due, (), trio.current_time())

    def finish(self) -> None:
        """Mark that this node has the last model."""
        self.carry_out(self._turns.finish(self._used))

    async def revoke(self, peer: str) -> None:
        """Forget a peer that left, was banned or restarted."""
        self._turns.forget(peer)
        await super().revoke(peer)

    async def reset_all(self) -> None:
        """Reset after the engine restarted with another vector than the published one."""
        self._turns.lost()
        await super().reset_all()
