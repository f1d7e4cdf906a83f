"""Evidence at work: what peers stated goes round, two statements that contradict each other become a proof, and proofs convict.

Only where vectors are pulled and signed (`node.daemon.exchange.pull_service`). Whoever was told something tells two
random members what was stated, at most
every `TOLD_S`; between them any two versions of one vector soon meet. A proof goes to all members, or a few in large swarms, from
everybody who sees it for the first time. `starling.robust.evidence` decides what is a proof and how much of others' word is looked at.

    a claim that is forged, a proof that proves nothing    a fault of the sender
    a word about who is no member, or another life of it   ignored
    a member that comes later                              a few members show it the latest proofs

Frames that cannot be sent are lost: others have said the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import trio

from starling.gossip.exchange.attestation import Statement, Verify
from starling.gossip.membership.dissemination import fan_out
from starling.gossip.membership.sampler import Sampler
from starling.gossip.wire.schema import MAX_CLAIMS, Evidence, Told
from starling.node.daemon.membership.best_effort import BestEffort
from starling.node.interfaces import Reporter, TaskStatus
from starling.node.net.api import Network
from starling.robust.evidence import (
    EQUIVOCATION,
    EvidenceStore,
    Statements,
    claim_of,
    equivocation,
    equivocation_check,
    statement_of,
)

TOLD_S = 0.5
LISTENERS = 2
WELCOME_S = 3.0
"""A newcomer knows the members by then."""
SHOWN = 8
"""Proofs shown to a newcomer: as many as it looks at from one sender."""
WELCOMERS = 3.0
"""Members who do so, on average."""


class EquivocationDetector:
    """One node's part in finding out who equivocates.

    Args:
        network: to send.
        report: told of faults, and of the convicted.
        swarm: swarm id.
        verify: checks a peer's signature.
        members: alive members, ourselves included.
        life_of: incarnation of an alive member, None for others.
        round: our own.
        seed: of a chance that peers cannot know: who equivocates must not know who will compare.
    """

    def __init__(
        self, *, network: Network, report: Reporter, swarm: str, verify: Verify, members: Callable[[], Sequence[str]],
        life_of: Callable[[str], int | None], round: Callable[[], int], seed: int,
    ) -> None:  # fmt: skip
        self._network = network
        self._report = report
        self._swarm = swarm
        self._members = members
        self._life_of = life_of
        self._round = round
        self._sampler = Sampler(seed)
        self._store = EvidenceStore({EQUIVOCATION: equivocation_check(swarm, verify)})
        self._statements = Statements(verify)
        self._fresh: deque[Statement] = deque(maxlen=MAX_CLAIMS)
        self._something = trio.Event()
        self._best_effort = BestEffort(network)

    # --- what is heard ------------------------------------------------------------------------------------

    def heard(self, statement: Statement) -> None:
        """A peer told us this itself; its signature is good, and its life the one in which it is a member."""
        self._weigh(statement, self._statements.note(statement, self._round()))
        self._fresh.append(statement)
        self._something.set()

    def receive(self, sender: str, message: Told | Evidence) -> None:
        """A member passes something on.

        Raises:
            RemoteProtocolError: claim_forged, evidence_proves_nothing, too_much_evidence.
        """
        now, me = trio.current_time(), self._network.peer_id
        if isinstance(message, Evidence):
            known = message.peer != me and self._life_of(message.peer) is not None
            if known and self._store.receive(sender, message, now):
                self._convict(message)
            return
        for claim in message.claims:
            if claim.peer != me and self._life_of(claim.peer) == claim.life:
                statement = statement_of(claim, self._swarm)
                self._weigh(statement, self._statements.hear(sender, statement, self._round(), now))

    def welcome(self, peer: str) -> None:
        """A member came: show it what is proven, if the lot falls on us."""
        if self._store.held(trio.current_time()) and self._sampler.draw() * len(self._members()) < WELCOMERS:
            self._best_effort.spawn(partial(self._show, peer))

    def forget(self, peer: str) -> None:
        """A member is gone."""
        self._statements.forget(peer)

    def _weigh(self, statement: Statement, earlier: Statement | None) -> None:
        if earlier is not None:
            proof = equivocation(earlier, statement)
            if self._store.add(proof, trio.current_time()):
                self._convict(proof)

    def _convict(self, proof: Evidence) -> None:
        text = f"{proof.peer} is proven to have told two vectors for one round ({proof.kind})"
        self._report.event("peer_convicted", text, level="warning", peer=proof.peer, kind=proof.kind)
        self._report.fault(proof.peer, proof.kind)
        others = [peer for peer in self._others() if peer != proof.peer]
        for peer in self._sampler.sample(others, fan_out(len(others) + 1)):
            self._best_effort.send_soon(peer, proof)

    # --- what is told -------------------------------------------------------------------------------------

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Pass statements on until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._best_effort.serve)
            task_status.started()
            while True:
                await self._something.wait()
                await trio.sleep(TOLD_S)
                self._something = trio.Event()
                told = Told(tuple(claim_of(statement) for statement in self._fresh))
                self._fresh.clear()
                for peer in self._sampler.sample(self._others(), LISTENERS):
                    self._best_effort.send_soon(peer, told)

    async def _show(self, peer: str) -> None:
        await trio.sleep(WELCOME_S)
        for proof in self._store.held(trio.current_time())[-SHOWN:]:
            if proof.peer != peer:
                await self._best_effort.send(peer, proof)

    def _others(self) -> list[str]:
        return [peer for peer in self._members() if peer != self._network.peer_id]
