"""Many newcomers at once: honest ones that stay, and identities that cost nothing and go."""

from functools import cache

import pytest
import trio

from starling.gossip.wire.schema import Hello
from starling.node.config.schema import Manifest, PaceSection, PartitionSection, TaskSection
from starling.node.daemon.running import RunningNode
from starling.node.simulate.virtual.swarm import VirtualSwarm
from tests.harness.hostile import NO_VIEW, Stranger
from tests.harness.stories import replayable, virtual
from tests.harness.swarms import rounds_done, story, until


def quadratic(nodes: int, most: int) -> Manifest:
    """Return a manifest of `most` nodes, of which so many begin; a round takes a fifth of a second."""
    return Manifest(
        task=TaskSection(kind="quadratic", nodes=most, dim=5),
        partition=PartitionSection(shards=most),
        pace=PaceSection(kind="steps", local_steps=10, rounds=10**4, quorum=nodes, max_wait_s=1.0, evaluate_every=10**4),
    )


def rosters(swarm: VirtualSwarm) -> list[tuple[str, ...]]:
    """Return of each node that runs the members that count."""
    return [it.node.running.membership.roster for it in swarm.nodes.values() if isinstance(it.node.phase, RunningNode)]


@virtual(1)
async def test_nodes_agree_at_once_on_who_counts_after_a_burst_of_newcomers():
    """Some of them had hardly exchanged after 40 rounds, as those that came later counted the earlier ones and the others did not."""
    swarm = story(quadratic(4, 12), 1)
    async with swarm.running(4):
        await until(lambda: rounds_done(swarm, 3))
        for index in range(4, 12):
            await swarm.start(index)
            await trio.sleep(0.1)
        await until(lambda: len(rosters(swarm)) == 12)
        await trio.sleep(0.3)
        assert set(rosters(swarm)) == {tuple(sorted(it.peer_id for it in swarm.nodes.values()))}


async def visit(swarm: VirtualSwarm, number: int, victim: str) -> None:
    """Be a member whom nobody has seen before, for half a second."""
    stranger = Stranger(swarm.hub, swarm.swarm, f"visitor {number}")
    with trio.move_on_after(0.5):
        await stranger.tell(victim, Hello(stranger.record(stranger.identity), NO_VIEW, 0.0))
        await stranger.be_a_member(list, 0.0)
    swarm.hub.crash(stranger.peer)


@cache
def committed(visits_per_s: int) -> int:
    """Return the exchanges of eight nodes in ten seconds, while each in turn is visited."""

    async def tale():
        swarm = story(quadratic(8, 8), 1)
        async with swarm.running(8), trio.open_nursery() as nursery:
            await until(lambda: rounds_done(swarm, 5))
            nodes = list(swarm.nodes.values())
            before = sum(it.node.running.exchange.stats.committed for it in nodes)
            for number in range(10 * visits_per_s):
                nursery.start_soon(visit, swarm, number, nodes[number % 8].peer_id)
                await trio.sleep(1.0 / visits_per_s)
            if not visits_per_s:
                await trio.sleep(10.0)
            after = sum(it.node.running.exchange.stats.committed for it in nodes)
            nursery.cancel_scope.cancel()
        return after - before

    return replayable(tale, 1)


@pytest.mark.slow
@pytest.mark.acceptance
def test_identities_that_come_and_go_prevent_few_exchanges(deterministic_scheduler):
    """One a second at each node, as many as the network lets in; .06 are left where all of them count."""
    deterministic_scheduler(1)
    undisturbed = committed(0)
    deterministic_scheduler(1)
    assert committed(8) >= 0.6 * undisturbed > 0
