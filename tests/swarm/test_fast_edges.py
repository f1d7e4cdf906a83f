"""Whole nodes that choose their edges by the speed of their own exchanges."""

import pytest
from msgspec import structs

from starling.gossip.overlay.sticky import StickyEdges
from starling.node.config.schema import OverlaySection
from starling.node.net.memory import Deliver
from tests.harness.sections import taken
from tests.harness.stories import virtual
from tests.harness.swarms import assert_flows_cancel, digits, drain, story, until

NODES, SLOW = 8, 200_000.0  # bytes per second of every second node; the others have eight times as much
CHOOSE = taken(OverlaySection, kind="sticky", choose="fast", degree=3, choose_every=2)


def lines(swarm):
    """Deliver frames at the rate of the slower of both connections."""
    ids = {swarm.identity(index).peer_id: index for index in range(NODES)}
    return lambda src, dst, _now: Deliver(0.001, SLOW if ids[src] % 2 or ids[dst] % 2 else 8 * SLOW)


@pytest.mark.slow
@virtual(1)
async def test_fast_nodes_find_one_another_keep_random_edges_and_lose_no_flow():
    agreed = structs.replace(digits(NODES, pace="clock", rounds=40, quorum=NODES), overlay=CHOOSE)
    swarm = story(agreed, 1)
    swarm.hub.rules.append(lines(swarm))
    async with swarm.running(NODES):
        await until(lambda: all(it.node.progress.round >= 32 for it in swarm.nodes.values()))
        found, ids = 0, {it.peer_id: index for index, it in swarm.nodes.items()}
        for index, it in swarm.nodes.items():
            edges = it.node.running.exchange.sticky
            drawn = StickyEdges(1, edges.salt)
            drawn.update(it.peer_id, ids.keys() - {it.peer_id})
            assert set(drawn.targets) <= set(edges.peers)
            fastest = max(edges.rates, key=edges.rates.__getitem__)
            assert index % 2 or ids[fastest] % 2 == 0
            found += index % 2 == 0 and any(ids[peer] % 2 == 0 for peer in edges.fast)
        assert found >= NODES / 2 - 1
        await swarm.finished()
        assert min(it.node.progress.evaluated.value for it in swarm.nodes.values()) >= 0.8
        await drain(swarm)
        assert assert_flows_cancel(swarm) > 0.0
