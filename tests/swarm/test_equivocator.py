"""A member that sends different vectors to different peers in a pulling swarm is detected by comparing attestations, and banned by all."""

import msgspec
import pytest
import trio

from starling.gossip.exchange.attestation import Attestation, body, claim_of, digest
from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import Attestations, Evidence, Pulled
from starling.node.config.schema import (
    CompressSection,
    Manifest,
    MixSection,
    OverlaySection,
    PaceSection,
    PartitionSection,
    RobustSection,
    TaskSection,
)
from starling.robust.evidence import equivocation
from tests.harness.stories import virtual
from tests.harness.swarms import events, kill_engine, rounds_done, story, until

NODES = 8
LIAR = NODES - 1


def gathering(rounds: int = 25) -> Manifest:
    """Return a manifest in which nodes pull three peers and take the median."""
    return Manifest(
        task=TaskSection(kind="quadratic", nodes=NODES, dim=20),
        partition=PartitionSection(shards=NODES),
        mix=MixSection(kind="gather"),
        overlay=OverlaySection(kind="pull", k=3),
        robust=RobustSection(rule="median"),
        compress=CompressSection(select="full"),
        pace=PaceSection(kind="steps", local_steps=5, rounds=rounds, quorum=NODES, max_wait_s=1.0),
    )


def equivocate(swarm, index: int, deceived: set[str]) -> None:
    """Let a node send some peers another vector from now on, signed as well."""
    virtual, identity = swarm.nodes[index], swarm.identity(index)
    network, honest = virtual.node.network, virtual.node.network.send

    async def send(peer, lane, frame):
        message = decode(lane, "", frame) if lane == "exchange" else None
        if isinstance(message, Pulled) and peer in deceived:
            payload = message.payload[:-8] + bytes(8)
            what = digest(payload)
            signature = identity.sign(body(swarm.swarm, identity.peer_id, message.incarnation, message.round, what))
            frame = encode(msgspec.structs.replace(message, payload=payload, digest=what, signature=signature))
        await honest(peer, lane, frame)

    network.send = send


def standing(virtual, peer: str):
    return virtual.node.policy.standing(peer)


@virtual(1)
async def test_an_equivocator_is_banned_by_every_honest_node_within_some_rounds():
    swarm = story(gathering(), 1)
    async with swarm.running(NODES):
        await until(lambda: rounds_done(swarm, 5))
        liar = swarm.nodes[LIAR].peer_id
        honest = [virtual for index, virtual in swarm.nodes.items() if index != LIAR]
        equivocate(swarm, LIAR, {honest[0].peer_id})
        began = max(virtual.node.progress.round for virtual in honest)
        await until(lambda: all(standing(virtual, liar).state == "ban" for virtual in honest))
        assert max(virtual.node.progress.round for virtual in honest) - began <= 20
        for virtual in honest:
            assert virtual.node.network.refuses(liar)
            assert standing(virtual, liar).why == "equivocation"
            assert virtual.node.events.faults.keys() == {liar}
            assert "peer_convicted" in events(virtual)
        await until(lambda: all(len(virtual.node.running.membership.members) == NODES - 1 for virtual in honest))


@virtual(2)
async def test_an_equivocator_that_restarts_at_once_is_banned_all_the_same():
    """It begins a new life as soon as two have its vectors, before anybody has compared them."""
    swarm = story(gathering(60), 2)
    async with swarm.running(NODES):
        await until(lambda: rounds_done(swarm, 5))
        liar = swarm.nodes[LIAR]
        honest = [virtual for index, virtual in swarm.nodes.items() if index != LIAR]
        half, sent, send = {virtual.peer_id for virtual in honest[:4]}, {}, liar.node.network.send

        async def noted(peer, lane, frame):
            message = decode(lane, "", frame) if lane == "exchange" else None
            if isinstance(message, Pulled):
                sent.setdefault(message.round, set()).add(message.digest)
            await send(peer, lane, frame)

        liar.node.network.send = noted
        equivocate(swarm, LIAR, half)
        await until(lambda: any(len(digests) > 1 for digests in sent.values()))
        await swarm.crash(LIAR)
        await swarm.start(LIAR, shard=LIAR)
        await until(lambda: all(standing(virtual, liar.peer_id).state == "ban" for virtual in honest), 60.0)
        assert all(virtual.node.events.faults.keys() == {liar.peer_id} for virtual in honest)


@pytest.mark.acceptance
@virtual(1)
async def test_a_banned_member_that_returns_as_another_has_a_few_rounds_and_is_banned_again():
    """A new identity gains a few rounds as one Byzantine member, no more the second time, and no honest member is affected."""
    swarm = story(gathering(40), 1)
    async with swarm.running(NODES):
        await until(lambda: rounds_done(swarm, 5))
        honest, names = list(swarm.nodes.values())[:LIAR], []
        for index in (LIAR, LIAR + 1):
            virtual = swarm.nodes.get(index) or await swarm.start(index, shard=LIAR)
            names.append(liar := virtual.peer_id)
            await until(lambda liar=liar: all(liar in v.node.running.membership.members for v in honest))
            equivocate(swarm, index, {v.peer_id for v in honest[:3]})
            began = max(v.node.progress.round for v in honest)
            await until(lambda liar=liar: all(standing(v, liar).state == "ban" for v in honest))
            assert max(v.node.progress.round for v in honest) - began <= 10
            await swarm.crash(index)
        assert all(v.node.events.faults.keys() == set(names) for v in honest)


@virtual(1)
async def test_false_accusations_harm_only_the_accuser():
    swarm = story(gathering(), 1)
    async with swarm.running(NODES):
        await until(lambda: rounds_done(swarm, 3))
        liar, victim, judge = (swarm.nodes[index] for index in (LIAR, 0, 1))
        incarnation = judge.node.running.membership.incarnation_of(victim.peer_id)

        def forged(vector: int) -> Attestation:
            what, at = bytes([vector]) * 32, judge.node.progress.round
            sign = swarm.identity(LIAR).sign
            return Attestation(
                swarm.swarm, victim.peer_id, incarnation, at, what, sign(body(swarm.swarm, victim.peer_id, incarnation, at, what))
            )

        async def say(message):
            await liar.node.network.send(judge.peer_id, "control", encode(message))
            await trio.sleep(0.1)

        await say(Evidence("gossip", victim.peer_id, b"", b""))
        stranger = swarm.identity(99)
        lies = [
            Attestation(
                swarm.swarm,
                stranger.peer_id,
                1,
                3,
                bytes([v]) * 32,
                stranger.sign(body(swarm.swarm, stranger.peer_id, 1, 3, bytes([v]) * 32)),
            )
            for v in (1, 2)
        ]
        await say(equivocation(*lies))
        assert judge.node.events.faults == {}
        await say(Attestations((claim_of(forged(1)),)))
        await say(equivocation(forged(1), forged(2)))
        assert judge.node.events.faults == {liar.peer_id: {"claim_forged": 1, "evidence_proves_nothing": 1}}
        assert standing(judge, liar.peer_id).state == "quarantine"
        assert standing(judge, victim.peer_id).score == 0.0
        others = [v for index, v in swarm.nodes.items() if index not in {LIAR, 1}]
        assert not any(virtual.node.events.faults for virtual in others)  # it was not forwarded


@virtual(1)
async def test_an_honest_swarm_convicts_no_peer_despite_crashes_and_restarts():
    swarm = story(gathering(30), 1)
    async with swarm.running(NODES):
        await until(lambda: rounds_done(swarm, 8))
        kill_engine(swarm.nodes[2])
        await swarm.crash(3)
        await trio.sleep(0.5)
        await swarm.start(3)
        await until(lambda: rounds_done(swarm, 25))
        for virtual in swarm.nodes.values():
            assert virtual.node.events.faults == {}
            assert "peer_convicted" not in events(virtual)
