"""A small version of `benchmarks/recipes/large.toml`: two nodes train in fragments, one is killed and resumes, a third joins late."""

from pathlib import Path
from tempfile import TemporaryDirectory

from starling.node.config.schema import CompressSection, NodeConfig
from tests.harness.sections import taken
from tests.harness.stories import virtual
from tests.harness.swarms import assert_flows_cancel, digits, drain, events, rounds_done, story, until

LEARNED = 0.6  # accuracy of the worst node, with a part of four per exchange; guessing gives 0.1


@virtual(1)
async def test_exchanges_in_fragments_survive_a_crash_and_a_late_join(seed):
    """Every part is exchanged in both directions of an edge, and flows cancel bit for bit at the end."""
    fragments = taken(CompressSection, select="fragment", parts=4)
    with TemporaryDirectory() as folder:
        agreed = digits(2, rounds=30, compress=fragments, local_steps=5, evaluate_every=30)
        own = NodeConfig(linger_s=1e6, threads=1, checkpoint_s=0.5)
        swarm = story(agreed, seed, folder=Path(folder), config=own)
        async with swarm.running(2):
            await until(lambda: rounds_done(swarm, 10))
            await swarm.crash(1)
            await until(lambda: rounds_done(swarm, 12))
            back = await swarm.start(1)
            await until(lambda: rounds_done(swarm, 14))
            assert back.node.running.opened.resumed
            late = await swarm.start(2)
            await swarm.finished()
            await drain(swarm)
            assert late.node.progress.joined_late
            assert "state_fetched" in events(late)
            assert assert_flows_cancel(swarm) > 0.0
            pair = [swarm.nodes[0], swarm.nodes[1]]  # the third joined so late that some parts were never exchanged with it
            flows = [one.engine.replica.memory.ledger.flows[other.peer_id] for one, other in (pair, pair[::-1])]
            quarter = len(flows[0]) // 4
            assert all(bool(flow[at : at + quarter].any()) for flow in flows for at in range(0, 4 * quarter, quarter))
            assert min(virtual.node.progress.evaluated.value for virtual in swarm.nodes.values()) > LEARNED
