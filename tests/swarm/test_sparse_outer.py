"""Sparse outer steps on whole nodes: anchors are equal to the bit, and become so again after loss, a crash and a late join."""

import msgspec
import pytest
import torch

from starling.gossip.mix.broadcast_codec import anchor_digest
from starling.node.config.schema import CompressSection, MixSection, OverlaySection
from starling.node.net.faults import Drop
from tests.harness.sections import taken
from tests.harness.stories import virtual
from tests.harness.swarms import digits, events, rounds_done, story, until, values

NODES = 5
LEARNED = 0.85  # what the worst node reaches; chance is 0.1


def agreement(rounds):
    compress = taken(CompressSection, select="chunk_top_k", ratio=0.05, response="spread1")
    agreed = digits(NODES, rounds=rounds, quorum=4, compress=compress, local_steps=5, evaluate_every=rounds)
    return msgspec.structs.replace(
        agreed, mix=taken(MixSection, kind="sparse_outer", decay=0.9), overlay=OverlaySection(kind="complete")
    )


@virtual(more=(1,))
async def test_without_faults_all_nodes_have_equal_outer_parameters_to_the_bit(seed):
    """Which is their model to all who look at it; what trains on is each node's own."""
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
    """Members count differently for a while, so anchors part; a majority's is fetched."""
    swarm = story(agreement(60), seed)  # a repair may fail, and may part its node again by the round that it costs
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
async def test_a_node_that_missed_messages_takes_the_anchor_of_the_most(seed):
    """For some rounds nothing of the first node reaches the second: both are apart, and those that waited for them."""
    swarm = story(agreement(40), seed)
    async with swarm.running(NODES):
        await until(lambda: rounds_done(swarm, 5))
        one, other = swarm.nodes[0].peer_id, swarm.nodes[1].peer_id
        swarm.hub.rules.append(lambda src, dst, _now: Drop() if (src, dst) == (one, other) else None)
        await until(lambda: rounds_done(swarm, 8))
        swarm.hub.rules.clear()
        await swarm.finished()
        assert any("anchor_parted" in events(v) for v in swarm.nodes.values())
        assert len({anchor_digest(v.vector) for v in swarm.nodes.values()}) == 1
        assert min(values(swarm)) > LEARNED
