"""The parts of a scenario's swarm: speeds of nodes and links, and names of nodes."""

import numpy as np
import pytest

from starling.node.config import toml
from starling.node.simulate import build
from starling.node.simulate.schema import Scenario, joiners, manifest


def scenario(*assignments):
    return toml.apply_set(Scenario(), ["simulate.nodes=10", "pace.rounds=400", *assignments])


def test_stragglers_have_the_configured_number_and_slowness():
    made = scenario("faults.straggler_share=0.3", "faults.straggler_factor=7", "network.step_s=0.02")
    seconds = build.step_s(made, 10)
    assert sorted(seconds) == pytest.approx([0.02] * 7 + [0.14] * 3)


def test_rates_may_be_unlimited_equal_spread_or_listed():
    assert np.isinf(build.rates(scenario(), 4)).all()
    assert build.rates(scenario("network.bytes_per_s=5e5"), 3).tolist() == [5e5] * 3
    spread = np.log(build.rates(scenario("network.bytes_per_s=5e5", "network.spread=0.7"), 2000) / 5e5)
    assert float(spread.std()) == pytest.approx(0.7, rel=0.1)
    assert float(spread.mean()) == pytest.approx(0.0, abs=0.05)
    assert build.rates(scenario("network.rates=[1e3, 2e3]"), 5).tolist() == [1e3, 2e3, 1e3, 2e3, 1e3]


def test_a_partition_has_the_configured_share_on_one_side():
    made = scenario("simulate.nodes=1000", "faults.partitions=[[1, 5, 0.3], [7, 9, 0.3]]")
    (begin, end, first), (_, _, second) = build.splits(made, 1000)
    assert (begin, end) == (1, 5)
    assert first.mean() == pytest.approx(0.3, abs=0.05)
    assert not np.array_equal(first, second)


def test_simulated_nodes_have_the_names_of_whole_ones():
    """Names determine ranks, batches and initiators."""
    agreed = manifest(scenario())
    swarm, peers = build.identities(agreed, 3)
    assert swarm.startswith("s")
    assert len(set(peers)) == 3
    assert build.identities(agreed, 3) == (swarm, peers)
    assert build.identities(manifest(scenario("simulate.seed=1")), 3)[1] != peers


def test_rows_are_reserved_for_joiners():
    made = scenario("faults.join=0.5")
    assert build.rows(made) == 10 + joiners(made)
