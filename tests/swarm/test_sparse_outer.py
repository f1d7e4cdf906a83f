"""Sparse outer steps on whole nodes: outer parameters are bitwise equal, also again after loss, omission, a crash and a late join."""

from random import Random

import msgspec
import pytest
import torch

from starling.gossip.mix.broadcast_codec import anchor_digest
from starling.gossip.wire.schema import NotNow, Pulled, Relayed
from starling.node.config.schema import CompressSection, MixSection, OverlaySection
from starling.node.net.faults import Drop
from tests.harness.sections import taken
from tests.harness.stories import virtual
from tests.harness.swarms import digits, events, lie, rounds_done, story, until, values

NODES = 5
LEARNED = 0.85  # accuracy of the worst node; guessing gives 0.1


def agreement(rounds):
    compress = taken(CompressSection, select="chunk_top_k", ratio=0.05, response="spread1")
    agreed = digits(NODES, rounds=rounds, quorum=4, compress=compress, local_steps=5, evaluate_every=rounds)
    return msgspec.structs.replace(agreed, mix=taken(MixSection, kind="sparse_outer", decay=0.9), overlay=OverlaySection(kind="complete"))


@virtual(more=(1,))
async def test_without_faults_all_nodes_have_equal_outer_parameters_to_the_bit(seed):
    """They are the model that status and evaluation use; each node trains its own."""
    swarm = story(agreement(30), seed)
    async with swarm.running(NODES):
        await swarm.finished()
        anchors = torch.stack([v.vector for v in swarm.nodes.values()])
        assert torch.equal(anchors, anchors[:1].expand_as(anchors))
        assert len({anchor_digest(v.engine.replica.x) for v in swarm.nodes.values()}) == NODES
        assert min(values(swarm)) > LEARNED
        assert not any("anchor_parted" in events(v) for v in swarm.nodes.values())


@virtual(1, more=(2, 3))
async def test_a_crash_and_a_late_join_in_one_round_leave_equal_outer_parameters(seed):
    """Numbers of members differ for a while, so outer parameters diverge; the majority's are fetched."""
    swarm = story(agreement(60), seed)  # a repair may fail, and may make its node diverge again by the round that it takes
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 10))
        await swarm.crash(3)
        await swarm.start(4)
        await swarm.finished()
        living = [swarm.nodes[index] for index in (0, 1, 2, 4)]
        assert len({anchor_digest(v.vector) for v in living}) == 1
        assert swarm.nodes[4].node.progress.joined_late
        assert min(values(swarm)) > LEARNED


@pytest.mark.acceptance
@virtual(1)
async def test_a_node_gets_missed_messages_from_others(seed):
    """For some rounds no frame of the first node reaches the second; its signed messages do, through others."""
    swarm = story(agreement(40), seed)
    async with swarm.running(NODES):
        await until(lambda: rounds_done(swarm, 5))
        one, other = swarm.nodes[0].peer_id, swarm.nodes[1].peer_id
        swarm.hub.rules.append(lambda src, dst, _now: Drop() if (src, dst) == (one, other) else None)
        await until(lambda: rounds_done(swarm, 8))
        swarm.hub.rules.clear()
        await swarm.finished()
        assert not any("anchor_parted" in events(v) for v in swarm.nodes.values())
        assert len({anchor_digest(v.vector) for v in swarm.nodes.values()}) == 1
        assert min(values(swarm)) > LEARNED


def tells(swarm, index, told):
    """Let a node send its message of a round only to the peers that `told` selects, and forward nobody's."""
    node = swarm.nodes[index].node

    def forge(message):
        return [NotNow(message.nonce, node.progress.round, "busy")] if isinstance(message, Pulled | Relayed) else [message]

    lie(node.network, "exchange", forge, lambda peer: not told(peer, node.progress.round))


def halves(peers, alternates):
    """Select half of the peers in a round: always the same, or drawn anew."""

    def told(peer, round):
        order = sorted(peers)
        if alternates:
            Random(round).shuffle(order)
        return peer in order[: len(order) // 2]

    return told


@pytest.mark.parametrize("alternates", [False, True])
@virtual(1, more=(2, 3))
async def test_a_member_that_sends_to_half_causes_no_divergence(seed, alternates):
    """The others forward what it signed. It stops some rounds before the end: two rounds later outer parameters are bitwise equal."""
    swarm = story(agreement(40), seed)
    async with swarm.running(NODES):
        honest = [swarm.nodes[index] for index in range(NODES - 1)]
        await until(lambda: rounds_done(swarm, 5))
        mute = [False]
        told = halves([v.peer_id for v in honest], alternates)
        tells(swarm, NODES - 1, lambda peer, number: mute[0] or told(peer, number))
        await until(lambda: rounds_done(swarm, 36))
        mute[0] = True
        await swarm.finished()
        assert len({anchor_digest(v.vector) for v in honest}) == 1
        assert not any("anchor_parted" in events(v) for v in honest)
        assert all(not v.node.events.faults for v in honest)
        assert min(values(swarm)) > LEARNED
