"""Clock pace in whole swarms: slots of a fifth of a second, everyone computes without pause, nobody waits for anybody."""

import pytest
import trio

from starling.node.net.faults import loss
from tests.harness.stories import replayable, virtual
from tests.harness.swarms import STEP_S, assert_flows_cancel, digits, drain, story, until

SLOTS = 60
SLOT_S = 0.2


def local_steps(swarm):
    return {index: virtual.node.progress.figures.local_steps for index, virtual in swarm.nodes.items()}


def slots(swarm):
    return [virtual.node.progress.round for virtual in swarm.nodes.values()]


def started(swarm):
    return all(slot >= 2 for slot in slots(swarm))


@virtual(1, more=(2,))
async def test_eight_nodes_learn_the_digits_and_their_slots_agree_to_within_one(seed):
    swarm = story(digits(8, pace="clock", rounds=SLOTS), seed)
    apart = []
    async with swarm.running(8):
        await until(lambda: started(swarm))
        first, began = max(slots(swarm)), trio.current_time()
        while max(slots(swarm)) < SLOTS:
            apart.append(max(slots(swarm)) - min(slots(swarm)))
            await trio.sleep(SLOT_S / 10)
        assert max(apart) <= 1
        assert abs(trio.current_time() - began - (SLOTS - first) * SLOT_S) <= 2 * SLOT_S
        await swarm.finished()
        assert min(virtual.node.progress.value for virtual in swarm.nodes.values()) >= 0.94
        await drain(swarm)
        assert assert_flows_cancel(swarm) > 0.0


@pytest.mark.slow
def test_nobody_waits_for_a_node_ten_times_slower(deterministic_scheduler):
    """The others do as many local steps in as many seconds as beside one that keeps up, and the slow one learns from them."""

    async def fates(slow):
        swarm = story(digits(6, pace="clock", rounds=SLOTS), 1, slow=slow)
        async with swarm.running(6):
            await until(lambda: started(swarm))
            fast = [swarm.nodes[index].node.progress for index in range(5)]
            took_s = await until(lambda: all(progress.state == "finished" for progress in fast))
            await swarm.finished()
            return took_s, local_steps(swarm), {i: v.node.progress.value for i, v in swarm.nodes.items()}

    outcomes = []
    for slow in ({}, {5: 10.0}):
        deterministic_scheduler(1)
        outcomes.append(replayable(lambda slow=slow: fates(slow), 1))
    (even_s, even, _), (slowed_s, slowed, values) = outcomes
    assert slowed_s <= even_s + SLOT_S
    for index in range(5):
        assert slowed[index] >= 0.95 * even[index]
    assert slowed[5] < 0.2 * even[5]  # the story is not empty
    assert min(values.values()) > 0.9


@virtual(1, more=(2,))
async def test_three_of_ten_frames_lost_leave_every_flow_the_negative_of_its_other_end(seed):
    swarm = story(digits(6, pace="clock", rounds=SLOTS), seed)
    async with swarm.running(6):
        await until(lambda: started(swarm))
        swarm.hub.rules.append(loss(0.3, seed))
        await swarm.finished()
        stats = [virtual.node.running.exchange.stats for virtual in swarm.nodes.values()]
        assert sum(each.timeout for each in stats) > 0  # the story is not empty
        assert min(each.committed for each in stats) > SLOTS / 4
        assert min(local_steps(swarm).values()) > 0.7 * SLOTS * SLOT_S / STEP_S
        await drain(swarm)
        assert assert_flows_cancel(swarm) > 0.0
        assert min(virtual.node.progress.value for virtual in swarm.nodes.values()) > 0.9
