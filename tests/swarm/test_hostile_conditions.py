"""Wrong clocks, with whole nodes in virtual time."""

from starling.node.config.schema import Manifest, PaceSection, PartitionSection, TaskSection
from tests.harness.stories import virtual
from tests.harness.swarms import agree, assert_flows_cancel, digits, drain, events, faults, rounds_done, story, until

DAY_S = 86_400.0


@virtual(more=(1,))
async def test_wall_clocks_that_are_wrong_or_jump_change_nothing():
    """Hours slow, days fast, and one that jumps a year during training: they are used for display only."""
    off = {0: 0.0, 1: -3600.0 * 7, 2: 3 * DAY_S, 3: 0.0}
    swarm = story(digits(4, rounds=30), 1, clock_off_s=off.__getitem__)
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 10))
        off[3], off[0] = 365 * DAY_S, -30 * DAY_S
        await swarm.finished()
        assert agree(swarm)
        assert not faults(swarm)
        assert all(it.node.progress.computed.steps == 30 * 10 for it in swarm.nodes.values())
        assert not {"peer_died", "peer_reborn", "peer_suspected"} & {name for it in swarm.nodes.values() for name in events(it)}
        await drain(swarm)
        assert_flows_cancel(swarm)


@virtual(1)
async def test_a_node_whose_clock_went_back_is_a_member_again_after_a_restart():
    """Its new incarnation has a lower number than the one its peers remember."""
    off = dict.fromkeys(range(4), 0.0) | {3: DAY_S}
    agreed = Manifest(
        task=TaskSection(kind="quadratic", nodes=4, dim=8),
        partition=PartitionSection(shards=4),
        pace=PaceSection(kind="steps", local_steps=2, rounds=1000, quorum=4, max_wait_s=1.0, evaluate_every=1000),
    )
    swarm = story(agreed, 1, clock_off_s=off.__getitem__)
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 5))
        await swarm.crash(3)
        off[3] = 0.0
        back = await swarm.start(3)
        await until(lambda: agree(swarm) and back.node.progress.round > 5, 60.0)
        met = back.node.running.exchange.stats.committed
        await until(lambda: back.node.running.exchange.stats.committed > met + 10, 60.0)
        assert not faults(swarm)
