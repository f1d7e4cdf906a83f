"""Two hundred kills at random times: whole nodes in virtual time, with checkpoints on disk."""

from pathlib import Path
from random import Random

import msgspec
import pytest
import trio

from starling.node.config.schema import Manifest, NodeConfig, PaceSection, PartitionSection, TaskSection
from starling.node.engine.tensor_file import unpack
from starling.node.simulate.virtual.swarm import VirtualSwarm
from tests.harness.stories import virtual
from tests.harness.swarms import agree, assert_flows_cancel, drain, faults, flows_with, kill_engine, until

NODES, KILLS, FEW = 6, 200, 12
AGREED = Manifest(
    task=TaskSection(kind="quadratic", nodes=NODES, dim=8),
    partition=PartitionSection(shards=NODES),
    pace=PaceSection(kind="steps", local_steps=2, rounds=0, quorum=2, max_wait_s=1.0, evaluate_every=10**6),
)
CONFIG = NodeConfig(linger_s=1e6, threads=1, trust=True, checkpoint_s=1.0)


@pytest.mark.acceptance
@pytest.mark.parametrize("kills", [FEW, KILLS])
@virtual(1, more=(2,))
async def test_after_any_number_of_kills_the_swarm_recovers_without_remaining_flows(tmp_path_factory, kills, seed):
    """Kills of nodes, which return with their checkpoint, and of engines; at most two nodes are away at a time."""
    folder, chance = tmp_path_factory.mktemp("kills"), Random(seed)
    swarm = VirtualSwarm(AGREED, seed=seed, step_cost_s=lambda _index: 0.25, config=CONFIG, folder=folder)
    async with swarm.running(NODES), trio.open_nursery() as nursery:
        await until(lambda: agree(swarm))

        async def come_back(index):
            await trio.sleep(chance.uniform(0.0, 3.0))
            await swarm.start(index)

        for _ in range(kills):
            await trio.sleep(chance.expovariate(2.0))
            index = chance.choice(sorted(swarm.nodes))
            if chance.random() < 0.3:
                kill_engine(swarm.nodes[index])
            elif len(swarm.nodes) > NODES - 2:
                await swarm.crash(index)
                nursery.start_soon(come_back, index)
        await until(lambda: len(swarm.nodes) == NODES and agree(swarm), 60.0)
        done = [it.node.progress.round for it in swarm.nodes.values()]
        await until(lambda: all(it.node.progress.round > max(done) for it in swarm.nodes.values()), 120.0)
        assert not faults(swarm)
        assert sorted(path.name for path in folder.iterdir() if path.suffix == ".part") == []
        for index in swarm.nodes:
            unpack((Path(folder) / f"{index}.safetensors").read_bytes())
        gone = swarm.nodes[NODES - 1].peer_id
        await swarm.crash(NODES - 1)
        await until(lambda: not flows_with(swarm, gone) and agree(swarm), 20.0)
        last = max(it.node.progress.round for it in swarm.nodes.values()) + 3
        for agreed in (swarm.manifest, swarm.agreed):
            msgspec.structs.force_setattr(agreed.pace, "rounds", last)
        await until(lambda: all(it.node.progress.state == "finished" for it in swarm.nodes.values()), 120.0)
        await drain(swarm)
        assert_flows_cancel(swarm)
