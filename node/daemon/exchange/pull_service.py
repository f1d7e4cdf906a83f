"""Pulled exchanges of one node: carry out the commands of the state machine in `gossip.exchange.pull`.

A round publishes, sends requests, waits for the core to be done, then mixes.

    frame of a non-member, broken rule                a fault, and nothing has changed
    frame longer than any response to us              a fault, before it is unpacked
    peer that cannot be reached, or takes no frame    its request times out at once
    engine that is lost                               the vectors it was to verify count as absent

Signatures are checked in the daemon, vectors in the engine: the frame loop never waits for arithmetic on one.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import trio

from starling.gossip.errors import EngineError, RemoteProtocolError
from starling.gossip.exchange.attestation import Attestation, Verify, attestation_of, body, statement_of
from starling.gossip.exchange.calls import VerifyUpdate
from starling.gossip.exchange.commands import Ended
from starling.gossip.exchange.estimates import Deadline
from starling.gossip.exchange.link_deadlines import LinkDeadlines
from starling.gossip.exchange.pull import KEPT, Pulls
from starling.gossip.exchange.relays import DEPTH, Relays
from starling.gossip.limits import TokenBucket
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.wire.frames import decode
from starling.gossip.wire.schema import MAX_PAYLOAD_BYTES, NotNow, Pull, Pulled, Relay, Relayed, Wake
from starling.node.daemon.context import NodeContext
from starling.node.daemon.exchange.facts import About, Fact, Noted, Received, Sent, Subscriber
from starling.node.daemon.exchange.outcome import RoundOutcome, Waited
from starling.node.daemon.exchange.service import ExchangeService
from starling.node.daemon.membership.neighbors import Members
from starling.node.identity import verify
from starling.node.rpc import calls
from starling.node.status.snapshot import Exchanges

MAX_UNDER_WAY_BYTES = 256 << 20  # payload bytes being sent to peers; further requests meanwhile are answered with busy
MAX_LEAD = 16  # rounds by which nodes may be apart without a fault
KEPT_MESSAGES = 8  # earlier rounds whose messages a lagging node may still request, where messages are summed
FRAME_BYTES = 512  # upper bound on a frame without its payload


@dataclass(frozen=True, slots=True)
class Signing:
    """How this node signs its vectors and verifies those of others."""

    first: int
    """The number of this node's first request: those of an earlier incarnation must not be used again."""
    attested: Callable[[Attestation], None]
    """Receives peers' signed statements."""
    verify: Verify = verify


class PulledExchange(ExchangeService[Pulls]):
    """One node's pulls, and its answers to those of others.

    `noted` is called with how a round's requests ended, by peer, and whom the rule clipped or excluded; None where unknown.
    """

    slow = ""  # slowness is not watched here, as nobody waits for a single answer
    exact = False
    """Whether no other vector than that of the requested round will do, also where vectors are not summed."""

    def __init__(self, context: NodeContext, members: Members, signing: Signing, noted: Noted, subscribers: Sequence[Subscriber]) -> None:
        pace = context.manifest.pace
        self._context = context
        self._admits = members.admits
        self._bucket: TokenBucket | None = None
        self._attested = signing.attested
        self._noted = noted
        link_deadlines = LinkDeadlines(Deadline(pace.min_wait_s, pace.max_wait_s), members.silent, members.lately_gone)
        self._probe_now = members.probe_now
        adds_up = MIXERS.facts(context.manifest.mix.kind, trusted=True).broadcasts
        core = Pulls(
            context.swarm,
            link_deadlines,
            signing.verify,
            members.incarnation_of,
            self._afford,
            Relays(context.swarm, context.me, signing.verify, DEPTH if adds_up else 0),
            MAX_LEAD,
            kept=KEPT_MESSAGES if adds_up else KEPT,
            exact=adds_up or self.exact,
            nonce=signing.first,
        )
        super().__init__(context, core, (*subscribers, self._observe), send_s=pace.max_wait_s)
        self._longest = 0  # length of the longest payload that a peer can send
        self.payload_bytes = 0  # sent
        self._since = math.inf  # time at which the local steps of the round began
        self._outcomes: Counter[str] = Counter()
        self._committed: Counter[str] = Counter()
        self._given: set[str] = set()  # peers whose vector the engine has received

    @property
    def edges(self) -> tuple[str, ...]:
        """Return the peers of the last round's requests."""
        return self._core.requested

    @property
    def stats(self) -> Exchanges:
        """Return counts of how our requests ended; committed means received and used."""
        return Exchanges(**self._outcomes)

    def committed(self, peer: str) -> int:
        """Return the number of vectors of `peer` that were used."""
        return self._committed[peer]

    def round_of(self, peer: str) -> int | None:
        """Return the highest round reported by `peer`."""
        return self._core.progress.rounds.get(peer)

    @property
    def lead(self) -> int:
        """Return the largest round that more peers report than may lie."""
        return self._core.progress.lead

    def _observe(self, fact: Fact) -> None:
        match fact:
            case Sent(message) if message.kind in (Pulled, Relayed):
                self.payload_bytes += message.payload_bytes

    def _receive(self, peer: str, frame: bytes | memoryview) -> None:
        if not self._admits(peer):
            return
        if len(frame) > self._longest + FRAME_BYTES:
            raise RemoteProtocolError(peer, "frame_too_long")
        message = decode("exchange", peer, frame)
        if isinstance(message, Wake):
            self._wake(peer, message)
            return
        if not isinstance(message, Pull | Pulled | NotNow | Relay | Relayed):
            raise RemoteProtocolError(peer, "wrong_kind_of_exchange")
        commands = self._core.receive(peer, message, trio.current_time())
        if isinstance(message, Pulled) and any(isinstance(command, VerifyUpdate) for command in commands):
            self._given.add(peer)
            self._tell(Received(About(peer, Pulled, *message.figures), len(frame)))
            self._attested(attestation_of(self._context.swarm, peer, message))
        if isinstance(message, Relayed) and commands:
            self._tell(Received(About(peer, Relayed, *message.figures), len(frame)))
            self._attested(statement_of(message.claim, self._context.swarm))
        self.carry_out(commands)

    def _wake(self, peer: str, wake: Wake) -> None:
        """Refuse a Wake: all members take part in every round. Raises RemoteProtocolError."""
        raise RemoteProtocolError(peer, "wrong_kind_of_exchange")

    def _afford(self, count: int, now: float) -> bool:
        """Return whether a payload may go out now, within the owner's cap and the bytes queued for slow readers."""
        if self.queued_bytes and self.queued_bytes + count > MAX_UNDER_WAY_BYTES:
            return False
        if not (cap := self._context.limits.up_bytes_per_s):
            return True
        if self._bucket is None or self._bucket.rate != cap or self._bucket.burst < count:
            self._bucket = TokenBucket(cap, max(cap, count))
        return self._bucket.take(count, now)

    async def _publish(self, round: int) -> bool:
        """Have our vector encoded and sign it, once for each round -> whether there is one."""
        if not self._core.publishable(round):
            return True  # the engine was restarted and repeated the round: what was sent stays valid
        reply = await self._engine.call(calls.Publish(round))
        if not isinstance(reply, calls.Published) or len(reply.payload) > MAX_PAYLOAD_BYTES:
            why = reply.reason if isinstance(reply, calls.Refused) else "it is longer than a frame may be"
            text = f"the model of round {round} was not published: {why}"
            self._context.report.event("not_published", text, level="warning", round=round)
            self.carry_out(self._core.withhold(round))
            return False
        payload, digest = reply.payload, reply.digest
        self._longest = max(self._longest, len(payload), reply.longest)
        context = self._context
        signature = context.identity.sign(body(context.swarm, context.me, context.incarnation, round, digest))
        published = Pulled(0, round, context.incarnation, digest, signature, payload)
        self.carry_out(self._core.publish(published, trio.current_time()))
        return True

    def computing(self, round: int, links: Mapping[str, float], view: bytes) -> None:
        """Begin the local steps of `round`; `view` is not needed."""
        self._since = trio.current_time()
        self._probe_now(links)
        self._core.compute(round)

    async def round(self, round: int, links: Mapping[str, float], view: bytes) -> RoundOutcome:
        """Publish, send requests to the peers of `links`, wait, then Mix. Raises EngineError: the engine cannot publish or mix.

        The rule ignores the weights, and no other node has to agree on the requests: `view` is not needed.
        """
        core = self._core
        lag_s = max(0.0, trio.current_time() - self._since)
        self._since = math.inf
        peers = links if await self._publish(round) else ()
        began = trio.current_time()
        self.carry_out(core.ask(round, peers, began, lag_s))
        try:
            awaited = await self._until_done(self._telling(round))
        finally:
            waited_s = trio.current_time() - began - core.link_deadlines.usual_s()
            core.close()
        outcomes = dict(core.outcomes)
        self._outcomes.update(outcomes.values())
        self._committed.update(peer for peer, outcome in outcomes.items() if outcome == "committed")
        mixed = await self._mix(round, core.requested)
        self._noted(outcomes, mixed.clipped_or_excluded)
        return RoundOutcome(round, outcomes, core.behind, mixed.distance, mixed.diverged, Waited(max(0.0, waited_s), awaited))

    def _telling(self, round: int) -> Callable[[], None]:
        """Return a callback that reports each request for vectors of `round` once it has ended."""
        numbers = dict(self._core.questions)

        def tell() -> None:
            for peer, outcome in self._core.outcomes.items():
                if (number := numbers.pop(peer, None)) is not None:
                    self._tell(Ended(peer, round, number, outcome, "", "initiator"))

        return tell

    async def revoke(self, peer: str) -> None:
        """Stop using the vector of a peer that is gone, banned or restarted; there is no flow to delete."""
        self._core.forget(peer)
        self._move()
        if peer not in self._given:
            return
        self._given.discard(peer)
        try:
            await self._engine.call(calls.Revoke(peer))
        except EngineError:
            return  # the engine is lost, and with it all that it stored of the peer

    async def reset_all(self) -> None:
        """Do nothing: no state of a peer lasts beyond a round."""
        await trio.lowlevel.checkpoint()
