"""Parts of the round loop that are chosen when a node opens."""

import pytest
from msgspec import structs

from starling.gossip.overlay.sticky import StickyEdges
from starling.node.config.schema import CompressSection, NodeConfig, OverlaySection, PaceSection, RobustSection
from starling.node.daemon.membership.neighbors import LastingNeighbors
from starling.node.daemon.training.catch_up import last_round
from starling.node.daemon.training.steps import evaluated
from tests.harness.swarms import digits, story
from tests.harness.virtual import virtual

FULL = CompressSection(select="full", response="fp16")
PULL = {"overlay": OverlaySection(kind="pull", k=5), "compress": FULL}
RING = {"overlay": OverlaySection(kind="ring")}
SAMPLED = {"mix": "gather", "pace": "sampled", "sample": 2, "aggregators": 1}
ALL = {"overlay": OverlaySection(kind="complete"), "robust": RobustSection(rule="mean"), "compress": FULL}


@pytest.mark.parametrize(
    ("pace", "sections", "alone", "names"),
    [
        ({}, {}, False, "StepsLoop Sequential LateJoin OverlayNeighbors RoundExchange"),
        ({"overlap": True}, {}, False, "StepsLoop Overlapping LateJoin OverlayNeighbors RoundExchange"),
        ({}, {}, True, "StepsLoop MeasuredBeforeMix LateJoin OverlayNeighbors RoundExchange"),
        ({"mix": "gather"}, PULL, False, "StepsLoop Sequential LateJoin RandomNeighbors PulledExchange"),
        ({"mix": "gather"}, ALL, False, "StepsLoop Sequential LateJoin OverlayNeighbors PulledExchange"),
        (SAMPLED, ALL, False, "SampledLoop FromCheckpoint SampledNeighbors SampledExchange"),
        ({"pace": "clock"}, {}, False, "SlotsLoop LastingContacts LateJoin LastingNeighbors VisitExchange"),
        ({"pace": "clock"}, RING, False, "SlotsLoop ScheduledContacts LateJoin OverlayNeighbors VisitExchange"),
    ],
)
@virtual
async def test_a_manifest_selects_each_part_once(pace, sections, alone, names):
    config = NodeConfig(linger_s=1e6, threads=1, trust=True, evaluate_alone=alone)
    swarm = story(structs.replace(digits(2, **pace), **sections), 1, config=config)
    async with swarm.running(2):
        node = swarm.nodes[0].node
        await node.ready()
        running, loop = node.running, node.running.training.loop
        inner = [getattr(loop, name) for name in ("rounds", "contacts") if hasattr(loop, name)]
        parts = loop, *inner, running.training.joining, running.pace.neighbors, running.exchange
        assert " ".join(type(it).__name__ for it in parts) == names
        assert (running.pace.equivocation is not None) == (pace.get("mix") == "gather")


def test_the_last_round_is_evaluated_whatever_its_number():
    pace = PaceSection(rounds=7, evaluate_every=3)
    assert [done for done in range(1, 8) if evaluated(pace, done)] == [3, 6, 7]
    assert last_round(pace) == 7
    assert last_round(PaceSection(rounds=0)) > 10**18


def test_with_sticky_edges_weights_depend_on_a_node_s_own_edges_only():
    edges = StickyEdges(2, b"salt")
    edges.update("a", ("a", "b", "c"))
    own = LastingNeighbors(lambda: ("a", "b", "c"), "a", edges, 0.5)
    assert own.weights(0) == {"b": 0.5, "c": 0.5}
    assert own.link_map(0).links == ((0, 1), (0, 2))
