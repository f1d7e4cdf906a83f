"""Who visits whom in clock pace, and who comes and goes: draws that both engines and all nodes must be able to rely on."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from starling.gossip.overlay.sticky import SPARE_EDGES
from starling.node.config import toml
from starling.node.simulate import build
from starling.node.simulate.churn import FEWEST, faults_of, turnover
from starling.node.simulate.matrix.slot_schedule import MAX_SERVED, Visits
from starling.node.simulate.schema import Scenario, joiners, manifest

PEERS = [f"peer-{row:03d}" for row in range(40)]


def visits(members, degree=6):
    made = Visits(PEERS, degree, b"salt", 0.5, seed=3)
    made.update(np.arange(40) < members)
    return made


@pytest.mark.parametrize(("members", "degree"), [(2, 6), (7, 6), (40, 6), (40, 3)])
def test_edges_have_two_ends_and_are_few(members, degree):
    edges = visits(members, degree).rings.edges
    for row in range(members):
        assert all(row in edges[other] for other in edges[row])
        assert 0 < len(edges[row]) <= degree + 1 + SPARE_EDGES


def test_a_node_makes_one_visit_a_slot_and_answers_few():
    made = visits(40)
    for slot in range(20):
        met = made.at(slot)
        assert max(Counter(met.one.tolist()).values()) == 1
        assert max(Counter(met.other.tolist()).values()) <= MAX_SERVED
        assert all(
            other in made.rings.edges[row] for row, other in zip(met.one.tolist(), met.other.tolist(), strict=True)
        )


def test_two_who_visit_each_other_meet_once():
    """One exchange serves both."""
    assert len(visits(2).at(0)) == 1


def test_every_edge_has_its_turn_before_any_has_two():
    made = visits(40)
    for slot in range(12):
        made.at(slot)
    for row in range(40):
        begun = [made._visited.get((row, other), -1) for other in made.rings.edges[row]]
        assert len(begun) <= 8
        assert min(begun) >= 12 - len(begun)


def test_slots_replay_and_differ_by_seed():
    one, again = visits(20), visits(20)
    other = Visits(PEERS, 6, b"salt", 0.5, seed=4)
    other.update(np.arange(40) < 20)
    first, second, third = (made.at(0) for made in (one, again, other))
    assert first.one.tolist() == second.one.tolist()
    assert first.one.tolist() != third.one.tolist()


def test_who_is_gone_is_visited_no_more_and_who_comes_is():
    made = visits(20)
    moved = made.update((np.arange(40) >= 2) & (np.arange(40) < 22))
    assert {row for pair in moved.void for row in pair} >= {0, 1}
    seen = set()
    for slot in range(8):
        met = made.at(slot)
        seen |= {*met.one.tolist(), *met.other.tolist()}
    assert seen == set(range(2, 22))


# --- comings and goings -------------------------------------------------------------------------------------------


def scenario(*assignments):
    return toml.apply_set(Scenario(), ["simulate.nodes=10", "pace.rounds=400", *assignments])


def lived(made):
    """The whole run of comings and goings, without a swarm."""
    faults, count = faults_of(made), build.rows(made)
    alive = torch.arange(count) < made.simulate.nodes
    used, changes = alive.clone(), []
    for round in range(made.pace.rounds):  # noqa: A001
        change = turnover(made, faults, round, alive, used)
        assert not {*change.left} & {*change.crashed, *(source for _, source in change.joined)}
        for row in (*change.crashed, *change.left):
            assert alive[row]
            alive[row] = False
        for row, source in change.joined:
            assert alive[source]
            assert not used[row]
            alive[row] = used[row] = True
        assert int(alive.sum()) >= FEWEST
        changes.append(change)
    return changes


def test_rates_are_nodes_a_round_on_average():
    """Within three standard deviations of 400 draws."""
    changes = lived(scenario("faults.crash=0.3", "faults.leave=0.2", "faults.join=0.5"))
    for kind, rate in (("crashed", 0.3), ("left", 0.2), ("joined", 0.5)):
        count = sum(len(getattr(change, kind)) for change in changes)
        assert abs(count - 400 * rate) < 3 * (400 * rate * (1 - rate)) ** 0.5


def test_nothing_happens_outside_of_its_rounds():
    changes = lived(
        scenario("faults.crash=1", "faults.leave=1", "faults.join=2", "faults.churn_from=100", "faults.churn_until=110")
    )
    busy = [at for at, change in enumerate(changes) if change.crashed or change.left or change.joined]
    assert busy == list(range(100, 110))


def test_two_nodes_always_stay():
    changes = lived(scenario("faults.crash=3", "faults.leave=3"))
    assert sum(len(change.crashed) + len(change.left) for change in changes) == 8


# --- what nodes and links can do ----------------------------------------------------------------------------------


def test_as_many_stragglers_as_said_and_as_slow():
    made = scenario("faults.straggler_share=0.3", "faults.straggler_factor=7", "network.step_s=0.02")
    seconds = build.step_s(made, 10)
    assert sorted(seconds) == pytest.approx([0.02] * 7 + [0.14] * 3)


def test_rates_are_unlimited_alike_spread_or_listed():
    assert np.isinf(build.rates(scenario(), 4)).all()
    assert build.rates(scenario("network.bytes_per_s=5e5"), 3).tolist() == [5e5] * 3
    spread = np.log(build.rates(scenario("network.bytes_per_s=5e5", "network.spread=0.7"), 2000) / 5e5)
    assert float(spread.std()) == pytest.approx(0.7, rel=0.1)
    assert float(spread.mean()) == pytest.approx(0.0, abs=0.05)
    assert build.rates(scenario("network.rates=[1e3, 2e3]"), 5).tolist() == [1e3, 2e3, 1e3, 2e3, 1e3]


def test_a_split_has_the_share_on_one_side():
    made = scenario("simulate.nodes=1000", "faults.partitions=[[1, 5, 0.3], [7, 9, 0.3]]")
    (begin, end, first), (_, _, second) = build.splits(made, 1000)
    assert (begin, end) == (1, 5)
    assert first.mean() == pytest.approx(0.3, abs=0.05)
    assert not np.array_equal(first, second)


def test_simulated_nodes_have_the_names_of_whole_ones():
    """Names decide ranks, batches and who initiates."""
    agreed = manifest(scenario())
    swarm, peers = build.identities(agreed, 3)
    assert swarm.startswith("s")
    assert len(set(peers)) == 3
    assert build.identities(agreed, 3) == (swarm, peers)
    assert build.identities(manifest(scenario("simulate.seed=1")), 3)[1] != peers


def test_rows_are_kept_for_who_will_join():
    made = scenario("faults.join=0.5")
    assert build.rows(made) == 10 + joiners(made)
