"""The equivocation detector: members exchange what peers signed, and two models signed by one peer for one round are a proof.

Only where models are pulled and signed (`node.daemon.exchange.pull_service`). A member sends what peers attested to LISTENERS random
members, at most every SEND_EVERY_S; so any two versions of one model soon meet at some member. A member that sees a proof for the first
time sends it to all members, or to a few in large swarms. `starling.robust.evidence` decides what is a proof and how many verifications a
sender may cause.

    a forged claim, a proof that proves nothing              a fault of the sender
    a claim of an incarnation that is neither a member's     ignored
    present one nor one whose statements are here
    a member that joins later                                a few members send it the latest proofs

Messages that cannot be sent are lost: other members send the same.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress

import trio

from starling.gossip.exchange.attestation import Attestation, claim_of, statement_of
from starling.gossip.membership.dissemination import fan_out
from starling.gossip.membership.sampler import Sampler
from starling.gossip.wire.schema import MAX_CLAIMS, Attestations, Evidence
from starling.node.daemon.context import NodeContext
from starling.node.daemon.membership.best_effort import BestEffort
from starling.node.daemon.membership.neighbors import Members
from starling.node.identity import verify
from starling.node.interfaces import TaskStatus
from starling.robust.evidence import EQUIVOCATION, EvidenceStore, Statements, equivocation, equivocation_check

SEND_EVERY_S = 0.5
LISTENERS = 2
WELCOME_S = 3.0  # seconds after which a new member has the member list
MAX_NEWCOMERS = 64  # joined members that wait for proofs; more are left to other members
MAX_SHOWN = 8  # proofs sent to a new member: as many as it verifies from one sender
WELCOMERS = 3.0  # number of members that send proofs to a newcomer, on average


class EquivocationDetector:
    """Collects what peers signed and finds contradictions; `current` gives the round, as statements count it, that this node knows of."""

    def __init__(self, context: NodeContext, members: Members, current: Callable[[], int]) -> None:
        self._me = context.me
        self._report = context.report
        self._swarm = context.swarm
        self._members = members
        self._current = current
        # seeds that peers cannot predict: an equivocator must not know which members will compare
        self._sampler = Sampler(context.secret_seed("witness"))
        self._store = EvidenceStore({EQUIVOCATION: equivocation_check(self._swarm, verify)})
        self._statements = Statements(verify)
        self._fresh: deque[Attestation] = deque(maxlen=MAX_CLAIMS)
        self._added = trio.Event()
        self._newcomers, self._welcomed = trio.open_memory_channel[str](MAX_NEWCOMERS)
        self._best_effort = BestEffort(context.network)

    @property
    def size(self) -> int:
        """Return the number of statements, and of their senders, in memory."""
        return self._statements.size

    def attested(self, statement: Attestation) -> None:
        """Compare a peer's statement with earlier ones; its signature is verified, and its incarnation is that of its record."""
        self._compare(statement, self._statements.add(statement, self._current()))
        self._fresh.append(statement)
        self._added.set()

    def receive(self, sender: str, message: Attestations | Evidence) -> None:
        """Process claims or a proof that a member passed on. Raises RemoteProtocolError: claim_forged, evidence_proves_nothing,
        too_much_evidence.
        """
        now, me = trio.current_time(), self._me
        if isinstance(message, Evidence):
            known = message.peer != me and self._members.incarnation_of(message.peer) is not None
            if known and self._store.receive(sender, message, now):
                self._convict(message)
            return
        for claim in message.claims:
            present = self._members.incarnation_of(claim.peer) == claim.incarnation
            if claim.peer != me and (present or self._statements.knows(claim.peer, claim.incarnation)):
                statement = statement_of(claim, self._swarm)
                self._compare(statement, self._statements.receive(sender, statement, self._current(), now))

    def welcome(self, peer: str) -> None:
        """Send a member that joined the latest proofs, with probability WELCOMERS / number of members."""
        if self._store.held(trio.current_time()) and self._sampler.draw() * len(self._members.members) < WELCOMERS:
            with suppress(trio.WouldBlock):
                self._newcomers.send_nowait(peer)

    def _compare(self, statement: Attestation, earlier: Attestation | None) -> None:
        if earlier is not None:
            proof = equivocation(earlier, statement)
            if self._store.add(proof, trio.current_time()):
                self._convict(proof)

    def _convict(self, proof: Evidence) -> None:
        text = f"{proof.peer} signed two different models for one round ({proof.kind})"
        self._report.event("peer_convicted", text, level="warning", peer=proof.peer, kind=proof.kind)
        self._report.fault(proof.peer, proof.kind)
        others = [peer for peer in self._others() if peer != proof.peer]
        for peer in self._sampler.sample(others, fan_out(len(others) + 1)):
            self._best_effort.send_soon(peer, proof)

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Pass claims and proofs on until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._best_effort.serve)
            nursery.start_soon(self._welcome_newcomers)
            task_status.started()
            while True:
                await self._added.wait()
                await trio.sleep(SEND_EVERY_S)
                self._added = trio.Event()
                claims = Attestations(tuple(claim_of(statement) for statement in self._fresh))
                self._fresh.clear()
                for peer in self._sampler.sample(self._others(), LISTENERS):
                    self._best_effort.send_soon(peer, claims)

    async def _welcome_newcomers(self) -> None:
        async with trio.open_nursery() as nursery:
            async for peer in self._welcomed:
                nursery.start_soon(self._show, peer)

    async def _show(self, peer: str) -> None:
        await trio.sleep(WELCOME_S)
        for proof in self._store.held(trio.current_time())[-MAX_SHOWN:]:
            if proof.peer != peer:
                await self._best_effort.send(peer, proof)

    def _others(self) -> list[str]:
        return [peer for peer in self._members.members if peer != self._me]
