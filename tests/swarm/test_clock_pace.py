"""Clock pace in whole swarms: slots of a fifth of a second, everyone computes without pause, nobody waits for anybody."""

import trio

from tests.harness.stories import virtual
from tests.harness.swarms import assert_flows_cancel, digits, drain, story, until

SLOTS = 60
SLOT_S = 0.2


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
