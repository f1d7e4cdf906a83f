"""An owner pauses a node of a whole swarm in virtual time: it learns nothing, and nobody else notices."""

import pytest
import trio

from starling.node.daemon.observe.control_commands import carry_out
from tests.harness.stories import virtual
from tests.harness.swarms import assert_flows_cancel, digits, drain, events, rounds_done, story, until

BEGAN, PAUSED, ROUNDS = 14, 8, 28
LONG = 80  # local steps of a round, which take longer than an exchange may


@pytest.mark.parametrize("pace", ["steps", "clock"])
@virtual(1)
async def test_a_paused_node_does_no_local_steps_and_all_exchanges(pace):
    swarm = story(digits(4, pace=pace, rounds=ROUNDS, local_steps=LONG), 1)
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 10))
        node, other = swarm.nodes[0].node, swarm.nodes[1].node
        counts = lambda: (node.progress.computed.steps, node.running.exchange.stats.committed)  # noqa: E731
        began = trio.current_time()
        assert await carry_out(node, "pause", {}) == {"paused": True}
        await until(lambda: rounds_done(swarm, BEGAN))
        (steps, committed), at, elapsed = counts(), other.progress.round, trio.current_time()
        usual_s = (elapsed - began) / (BEGAN - 10)
        await until(lambda: rounds_done(swarm, BEGAN + PAUSED))
        assert counts()[0] == steps
        assert counts()[1] >= committed + PAUSED - 2
        assert other.progress.round <= at + PAUSED + 2, "it keeps to the others' speed"
        assert pace == "clock" or trio.current_time() - elapsed <= 1.2 * PAUSED * usual_s, "nobody waits for it"
        assert await carry_out(node, "pause", {}) == {"paused": True}
        assert await carry_out(node, "resume", {}) == {"paused": False}
        await swarm.finished()
        assert counts()[0] >= steps + (LONG * (ROUNDS - BEGAN - PAUSED - 3) if pace == "steps" else 20)
        assert not node.progress.few_steps
        assert [name for name in events(swarm.nodes[0]) if name in {"paused", "resumed"}] == ["paused", "resumed"]
        await drain(swarm)
        assert_flows_cancel(swarm)
