"""Clock pace in whole swarms: slots of a fifth of a second, all nodes train without pause, none waits."""

import msgspec
import pytest
import trio

from starling.gossip.wire.schema import Acknowledge, Hello, Probe
from starling.node.config.schema import CompressSection, Manifest, PaceSection, PartitionSection, TaskSection
from tests.harness.hostile import Stranger
from tests.harness.stories import virtual
from tests.harness.swarms import assert_flows_cancel, digits, drain, events, lie, rounds_done, story, until

SLOTS = 45
SLOT_S = 0.2


def slots(swarm):
    return [virtual.node.progress.round for virtual in swarm.nodes.values()]


def started(swarm):
    return all(slot >= 2 for slot in slots(swarm))


@virtual(1, more=(2,))
async def test_six_nodes_learn_the_digits_and_their_slots_agree_to_within_one(seed):
    swarm = story(digits(6, pace="clock", rounds=SLOTS), seed)
    apart = []
    async with swarm.running(6):
        await until(lambda: started(swarm))
        first, began = max(slots(swarm)), trio.current_time()
        while max(slots(swarm)) < SLOTS:
            apart.append(max(slots(swarm)) - min(slots(swarm)))
            await trio.sleep(SLOT_S / 10)
        assert max(apart) <= 1
        assert abs(trio.current_time() - began - (SLOTS - first) * SLOT_S) <= 2 * SLOT_S
        await swarm.finished()
        assert min(virtual.node.progress.evaluated.value for virtual in swarm.nodes.values()) >= 0.94
        await drain(swarm)
        assert assert_flows_cancel(swarm) > 0.0


@pytest.mark.slow
@virtual(1)
async def test_visits_with_long_payloads_extend_commit_and_are_reported():
    """A payload takes two thirds of a second: if visits ended with their slot, no exchange would ever be committed."""
    swarm = story(digits(4, pace="clock", rounds=SLOTS, compress=CompressSection(select="full")), 1)
    async with swarm.running(4):
        await until(lambda: started(swarm))
        for virtual_node in swarm.nodes.values():
            virtual_node.node.running.context.network.cap(20_000, 0)
        exchanges = [virtual_node.node.running.exchange for virtual_node in swarm.nodes.values()]
        await until(lambda: max(slots(swarm)) >= SLOTS / 3)
        before = sum(exchange.stats.committed for exchange in exchanges)
        await until(lambda: max(slots(swarm)) >= SLOTS - 1)
        assert max(exchange.longest_s for exchange in exchanges) > 2 * SLOT_S
        assert sum(exchange.stats.committed for exchange in exchanges) - before >= 8
        told = [events(virtual_node).count("exchanges_slow") for virtual_node in swarm.nodes.values()]
        assert max(told) == 1
        await swarm.finished()
        await drain(swarm)
        assert assert_flows_cancel(swarm) > 0.0


def ahead(message):
    if isinstance(message, Hello | Probe | Acknowledge):
        return [msgspec.structs.replace(message, swarm_time=1e6 + max(0.0, message.swarm_time))]
    return [message]


@virtual(0, more=(1,))
async def test_one_liar_about_the_time_cannot_end_a_run(seed):
    """One of four nodes lies to all from the start, and to a node that joins later."""
    swarm = story(digits(4, pace="clock", rounds=SLOTS), seed)
    async with swarm.running(4):
        await until(lambda: all(it.node.network is not None for it in swarm.nodes.values()))
        lie(swarm.nodes[3].node.network, "control", ahead, lambda _peer: True)
        honest = [swarm.nodes[index] for index in range(3)]
        await until(lambda: all(it.node.progress.state == "training" for it in honest))
        began = trio.current_time()
        await until(lambda: max(it.node.progress.round for it in honest) >= SLOTS // 3)
        await swarm.start(4)
        await until(lambda: all(it.node.progress.state == "finished" for it in honest))
        assert abs(trio.current_time() - began - SLOTS * SLOT_S) <= 5 * SLOT_S
        assert all(it.node.progress.figures.local_steps > 5 * SLOTS for it in honest), "nobody skipped slots"
        assert swarm.nodes[4].node.progress.round <= SLOTS
        assert min(it.node.progress.evaluated.value for it in honest) >= 0.94


@virtual(1)
async def test_identities_of_a_stranger_do_not_end_the_run_of_a_newcomer():
    """Eight of them answer its probes; it took the median of what it heard, and had finished before it began."""
    agreed = Manifest(
        task=TaskSection(kind="quadratic", nodes=5, dim=5),
        partition=PartitionSection(shards=5),
        pace=PaceSection(kind="clock", local_steps=1, rounds=400, quorum=4, slot_s=SLOT_S),
    )
    swarm = story(agreed, 1)
    async with swarm.running(4), trio.open_nursery() as nursery:
        for number in range(8):
            stranger = Stranger(swarm.hub, swarm.swarm, f"ahead {number}")
            nursery.start_soon(stranger.be_a_member, lambda: [it.peer_id for it in swarm.nodes.values()], 1e6)
        await until(lambda: rounds_done(swarm, 20))
        late = await swarm.start(4)
        await until(lambda: late.node.progress.state == "training")
        assert len(late.node.running.membership.members) >= 4 + 8, "all of them are members"
        await trio.sleep(5.0)
        assert late.node.progress.state == "training"
        assert max(slots(swarm)) - min(slots(swarm)) <= 1
        nursery.cancel_scope.cancel()
