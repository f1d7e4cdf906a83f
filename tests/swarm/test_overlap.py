"""Swarms in virtual time with overlapping rounds: a slow link costs no time as long as it is not slower than the local steps."""

import pytest
import trio
from msgspec import structs

from starling.gossip.compress.budget import FILL
from starling.node.config.schema import NodeConfig
from starling.node.net.faults import delay
from tests.harness.stories import virtual
from tests.harness.swarms import STEP_S, assert_flows_cancel, digits, drain, longest, rounds_done, story, until, values

ROUNDS, STEPS, ONE_WAY_S = 24, 10, 0.06
UP = 8000  # bytes/s


async def played(seed, *, overlap, mix="pet"):
    """Run the rounds; return the swarm, and how long they took."""
    agreed = digits(4, mix=mix, rounds=ROUNDS, local_steps=STEPS, overlap=overlap)
    if mix == "pet":  # a κ suited to differences that are a round old (decision 0124)
        agreed = structs.replace(agreed, mix=agreed.mix.changed(kappa=0.2))
    swarm = story(agreed, seed, delay(ONE_WAY_S))
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 1))
        began = trio.current_time()
        await swarm.finished()
        elapsed_s = trio.current_time() - began
        await drain(swarm)
        assert_flows_cancel(swarm)
        assert all(virtual.node.progress.computed.steps == ROUNDS * STEPS for virtual in swarm.nodes.values())
    return swarm, elapsed_s


@virtual(1)
async def test_overlapped_exchanges_cost_no_local_steps_and_no_accuracy(seed):
    one_by_one, slow_s = await played(seed, overlap=False)
    beside, fast_s = await played(seed, overlap=True)
    computing_s = (ROUNDS - 1) * STEPS * STEP_S
    assert slow_s > computing_s + (ROUNDS - 2) * 2 * ONE_WAY_S
    assert fast_s < computing_s + 1.0, "evaluations and the last exchange remain"
    assert min(values(beside)) > min(values(one_by_one)) - 0.03
    for swarm in (one_by_one, beside):
        committed = [virtual.node.running.exchange.stats.committed for virtual in swarm.nodes.values()]
        assert min(committed) >= 0.9 * ROUNDS


@pytest.mark.parametrize("overlap", [False, True])
@virtual(1)
async def test_an_overlapped_exchange_is_no_longer_than_its_local_steps(overlap):
    """A slot is five times as long as a round's local steps."""
    agreed = digits(2, rounds=ROUNDS, local_steps=STEPS, overlap=overlap, slot_s=1.0)
    swarm = story(agreed, 1, config=NodeConfig(linger_s=1e6, threads=1, up_bytes_per_s=UP))
    async with swarm.running(2):
        await swarm.finished()
        first = min(swarm.nodes.values(), key=lambda it: it.peer_id)  # it initiates all exchanges, and plans their size
        late = range(5, ROUNDS - 1)  # its step time is known by now, and rounds overlap
        within = UP * (STEPS * STEP_S if overlap else agreed.pace.slot_s) * FILL
        assert 0.8 * within <= longest(first.node, late) <= within
