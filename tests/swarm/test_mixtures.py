"""Random mixtures of all faults: in any order, the ledger's sums hold and the swarm is one at the end."""

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec
import pytest
import trio

from starling.node.config.schema import MembershipSection, MixSection, NodeConfig
from starling.node.net.faults import loss
from starling.node.simulate.virtual.swarm import VirtualSwarm
from tests.harness.links import partition
from tests.harness.stories import virtual
from tests.harness.swarms import agree, assert_flows_cancel, digits, drain, kill_engine, rounds_done, story, until

NODES = 6
FAULTS = 8
SOFT = {"not_a_member"}  # faults that honest nodes may report of each other before they know of a crash


class Fate:
    """Draws crashes, returns, dead engines and partitions from a seed."""

    def __init__(self, swarm: VirtualSwarm, seed: int) -> None:
        self._swarm = swarm
        self._chance = Random(seed)
        self._down: list[int] = []

    async def strikes(self) -> None:
        await trio.sleep(1.5 * self._chance.random())
        index, kind = self._chance.choice(sorted(self._swarm.nodes)), self._chance.random()
        if kind < 0.35 and len(self._swarm.nodes) > NODES // 2:
            await self._swarm.crash(index)
            self._down.append(index)
        elif kind < 0.7 and self._down:
            await self._swarm.start(self._down.pop())
        elif kind < 0.85:
            kill_engine(self._swarm.nodes[index])
        else:
            await self._cut_in_two()

    async def relents(self) -> None:
        while self._down:
            await self._swarm.start(self._down.pop())

    async def _cut_in_two(self) -> None:
        ids = [self._swarm.identity(index).peer_id for index in range(NODES)]
        cut = partition([ids[0::2], ids[1::2]])
        self._swarm.hub.rules.insert(0, cut)
        await trio.sleep(2.5 * self._chance.random())
        self._swarm.hub.rules.remove(cut)


async def mixed(pace: str, seed: int, folder: Path | None, rounds: int = 90) -> None:
    agreed = msgspec.structs.replace(
        digits(NODES, pace=pace, rounds=rounds, local_steps=4),
        mix=MixSection(kappa=0.1),
        membership=MembershipSection(probe_s=0.3, timeout_s=0.15, suspicion_s=0.6, sync_s=1.0),
    )
    config = NodeConfig(linger_s=1e6, threads=1, trust=True, checkpoint_s=1.0)
    swarm = story(agreed, seed, config=config, folder=folder)
    async with swarm.running(NODES):
        await until(lambda: rounds_done(swarm, 1))
        swarm.hub.rules.append(loss(0.2, seed))
        fate = Fate(swarm, seed)
        for _ in range(FAULTS):
            await fate.strikes()
        await fate.relents()
        await swarm.finished()
        await drain(swarm)
        await until(lambda: agree(swarm))
        await drain(swarm)
        assert assert_flows_cancel(swarm) > 0.0
        assert min(virtual.node.progress.evaluated.value for virtual in swarm.nodes.values()) > 0.88
        for virtual in swarm.nodes.values():
            assert {reason for counts in virtual.node.events.faults.values() for reason in counts} <= SOFT


@pytest.mark.acceptance
@virtual(1, more=(2, 3))
async def test_a_mixture_of_faults_in_steps_pace(seed):
    with TemporaryDirectory() as folder:
        await mixed("steps", seed, Path(folder))


@virtual(more=(6, 1))
async def test_a_mixture_of_faults_in_clock_pace(seed):
    await mixed("clock", seed, None, rounds=130)
