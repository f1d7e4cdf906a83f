"""Recorded frames of honest nodes have no effect when replayed: whole nodes in virtual time."""

from random import Random

import pytest
import trio

from starling.gossip.wire.frames import decode
from starling.gossip.wire.schema import Spread
from starling.node.config.schema import Manifest, PaceSection, PartitionSection, TaskSection
from starling.node.daemon.membership.records import records_of
from starling.node.net.memory import MemoryHub
from starling.node.simulate.virtual.swarm import VirtualSwarm
from tests.harness.hostile import Stranger
from tests.harness.stories import virtual
from tests.harness.swarms import agree, assert_flows_cancel, drain, events, faults, rounds_done, until

PLAYED = 200  # recorded frames of all kinds, sent to every node
AGREED = Manifest(
    task=TaskSection(kind="quadratic", nodes=5, dim=8),
    partition=PartitionSection(shards=5),
    pace=PaceSection(kind="steps", local_steps=2, rounds=60, quorum=4, max_wait_s=1.0, evaluate_every=1000),
)


def comings(swarm):
    """Return the joins and leaves that each node reported."""
    return {index: [it for it in events(node) if it.startswith("peer_")] for index, node in swarm.nodes.items()}


@pytest.mark.parametrize("who", ["member", pytest.param("stranger", marks=pytest.mark.acceptance)])
@virtual(1, more=(2, 3))
async def test_replayed_frames_have_no_effect(monkeypatch, who, seed):
    """All frames of four nodes are recorded while one crashes and returns, and one leaves; they are replayed to them and to a newcomer.

    A member leaves out frames that would get it banned at once, and sends the records in them itself.
    """
    recorded, carry = [], MemoryHub.carry

    async def carried(self, src, dst, lane, frame):
        recorded.append((src, lane, frame))
        await carry(self, src, dst, lane, frame)

    monkeypatch.setattr(MemoryHub, "carry", carried)
    swarm = VirtualSwarm(AGREED, seed=seed, step_cost_s=lambda _index: 0.3)
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 4))
        await swarm.crash(3)
        await trio.sleep(4.0)
        await swarm.start(3)
        await until(lambda: agree(swarm))
        await swarm.leave(2)
        await swarm.crash(3)  # for good
        await until(lambda: agree(swarm))
        past = list(recorded)
        await swarm.start(4)  # it has never received records of 2 and 3
        await until(lambda: agree(swarm))
        await trio.sleep(1.0)
        before, replayer = comings(swarm), Stranger(swarm.hub, swarm.swarm)
        if who == "member":
            gossip = [decode(lane, src, frame) for src, lane, frame in past if lane == "control"]
            lives = {(it.peer, it.incarnation, it.version): it for message in gossip for it in records_of(message)}
            assert len(lives) > len({peer for peer, *_ in lives}), "of two lives and more versions"
            for it in swarm.nodes.values():
                await replayer.tell(it.peer_id, Spread((replayer.record(replayer.identity),)))
                await replayer.tell(it.peer_id, *(Spread((record,)) for record in lives.values()))
        else:
            for _, lane, frame in Random(seed).sample(past, PLAYED):
                for it in swarm.nodes.values():
                    if not it.node.network.refuses(replayer.peer):
                        await replayer.tell(it.peer_id, frame, lane=lane)
        await trio.sleep(8.0)
        assert {peer for peer, _ in faults(swarm)} <= {replayer.peer}, "no honest node is blamed for what it once said"
        own = replayer.peer
        for index, it in swarm.nodes.items():
            new = [event for event in it.node.events.recent if event.name.startswith("peer_") and own not in event.text]
            assert [event.name for event in new] == before[index], [event.text for event in new]
        await swarm.finished()
        await drain(swarm)
        assert_flows_cancel(swarm)
