"""An owner pauses a node of a whole swarm in virtual time: it does no local steps, and no other node is affected."""

import time

import pytest
import trio

from starling.node.config.schema import NodeConfig
from starling.node.daemon.observe.control_commands import carry_out
from starling.node.daemon.observe.final import first_error
from starling.node.daemon.observe.snapshot import take_snapshot
from starling.node.simulate.virtual.swarm import EPOCH_S
from tests.harness.stories import virtual
from tests.harness.swarms import STEP_S, assert_flows_cancel, digits, drain, events, rounds_done, story, until

BEGAN, PAUSED, ROUNDS = 14, 8, 28
LONG = 80  # local steps of a round, which take longer than an exchange's deadline


@pytest.mark.parametrize("pace", [pytest.param("steps", marks=pytest.mark.acceptance), "clock"])
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


@virtual(1)
async def test_nodes_started_outside_their_hours_do_one_round_and_then_wait_as_long_per_round():
    """Without a measured round they would run ahead, and no exchange with others would be committed."""
    hour = (time.localtime(EPOCH_S).tm_hour + 12) % 24
    config = NodeConfig(linger_s=1e6, threads=1, active=f"{hour}:00-{hour}:30")
    swarm = story(digits(2, rounds=12, local_steps=LONG), 1, config=config)
    async with swarm.running(2):
        node = swarm.nodes[0].node
        await swarm.finished()
        assert node.progress.computed.steps == LONG
        assert node.running.exchange.stats.committed >= 10
        assert trio.current_time() - node.began >= 12 * LONG * STEP_S
        assert f"not in its active hours, {config.active}" in take_snapshot(node).problem


@virtual(1)
async def test_an_invalid_schedule_ends_the_node_in_one_line():
    swarm = story(digits(1), 1, config=NodeConfig(active="at night"))
    with pytest.raises(ExceptionGroup) as caught:
        async with swarm.running(1):
            await trio.sleep_forever()
    assert str(first_error(caught.value)).startswith("active: must be ranges")
    assert not swarm.nodes[0].node.is_listening, "before anybody notices"
