"""An owner changes a node's resource limits in a whole swarm, in virtual time, during exchanges."""

import pytest
import torch

from starling.gossip.compress.budget import FILL
from starling.gossip.errors import GossipError
from starling.node.config.schema import NodeConfig
from starling.node.daemon.observe.control_commands import carry_out
from starling.node.daemon.observe.snapshot import take_snapshot
from tests.harness.stories import virtual
from tests.harness.swarms import digits, events, kill_engine, longest, rounds_done, story, until

UP = 60_000
NO_CAP = {"up_bytes_per_s": 0, "down_bytes_per_s": 0, "threads": 1}


@pytest.fixture(autouse=True)
def restored():
    """Restore the process's number of threads for other tests."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@virtual(1)
async def test_a_cap_set_at_run_time_shortens_exchanges_until_it_is_lifted():
    swarm = story(digits(2, rounds=40), 1, config=NodeConfig(linger_s=1e6, threads=1))
    async with swarm.running(2):
        await until(lambda: rounds_done(swarm, 10))
        virtual = min(swarm.nodes.values(), key=lambda it: it.peer_id)  # it initiates all exchanges, and plans their size
        node = virtual.node
        caps = []
        node.running.context.network.cap = lambda *given: caps.append(given)
        assert await carry_out(node, "limits", {}) == NO_CAP
        assert await carry_out(node, "limits", {"up_bytes_per_s": UP}) == {**NO_CAP, "up_bytes_per_s": UP}
        changed = node.progress.round
        status = take_snapshot(node)
        assert (status.up_limit_bytes_per_s, status.down_limit_bytes_per_s) == (UP, None)
        await until(lambda: rounds_done(swarm, changed + 10))
        lifted = node.progress.round
        assert await carry_out(node, "limits", {"up_bytes_per_s": 0}) == NO_CAP
        await swarm.finished()
        before, under, after = (longest(node, range(10)), longest(node, range(changed + 1, lifted)), longest(node, range(lifted + 1, 40)))
        budget = UP * swarm.manifest.pace.slot_s * FILL
        assert under <= budget < before == after
        assert caps == [(UP, 0), (0, 0)], "a memory network ignores them"
        assert events(virtual).count("limits_changed") == 2


@virtual(1)
async def test_a_changed_number_of_threads_survives_an_engine_restart():
    swarm = story(digits(2, rounds=40), 1, config=NodeConfig(linger_s=1e6, threads=1))
    async with swarm.running(2):
        await until(lambda: rounds_done(swarm, 5))
        virtual, node = swarm.nodes[0], swarm.nodes[0].node
        assert (await carry_out(node, "limits", {"threads": 2}))["threads"] == 2
        assert virtual.engine.opened.threads.number == 2
        kill_engine(virtual)
        await until(lambda: node.running.engine.restarts == 1 and node.running.engine.opened is not None)
        after = node.progress.round + 2
        await until(lambda: rounds_done(swarm, after))
        assert virtual.engine.opened.threads.number == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"threads": -1}, "threads: must be a whole number >= 0 and <= 1024, got -1; `starling config show`"),
        ({"up_bytes_per_s": "2MB"}, "up_bytes_per_s: must be a whole number >= 0 .*'2MB'"),
        ({"down_bytes_per_s": 5, "threads": True}, "threads: must be a whole number"),
        ({"device": "cpu"}, "device is not one of them; see `starling limits --help`"),
    ],
)
@virtual(1)
async def test_invalid_input_changes_nothing(fields, words):
    swarm = story(digits(2, rounds=4), 1, config=NodeConfig(linger_s=1e6, threads=1))
    async with swarm.running(2):
        await until(lambda: rounds_done(swarm, 2))
        with pytest.raises(GossipError, match=words):
            await carry_out(swarm.nodes[0].node, "limits", fields)
        assert await carry_out(swarm.nodes[0].node, "limits", {}) == NO_CAP
