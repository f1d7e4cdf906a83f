"""The exchanges of a simulated swarm, computed for all nodes at once, equal those that each node would compute."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.overlay.base_k import BaseK
from starling.gossip.overlay.equitopo import DirectedEquiDyn, UndirectedEquiStatic
from starling.gossip.overlay.links import links
from starling.gossip.overlay.one_peer import Hypercube, OnePeerExponential, RandomMatching
from starling.gossip.overlay.periodic import Periodic
from starling.gossip.overlay.ranks import ranked
from starling.gossip.overlay.static import Ring, StaticExponential
from starling.gossip.overlay.sticky import SPARE_EDGES, Sticky, StickyEdges
from starling.node.simulate.matrix.faults import churn
from starling.node.simulate.matrix.rings import Rings
from starling.node.simulate.matrix.schedule import MAX_SERVED, Schedule, SlotSchedule, by_rank
from starling.node.simulate.schema import FaultsSection
from tests.strategies import examples, seeds

PEERS = tuple(f"peer {(7 * number) % 23:02d}" for number in range(23))
OVERLAYS = (
    Ring(),
    StaticExponential(),
    OnePeerExponential(),
    RandomMatching(3),
    Sticky(3),
    BaseK(2),
    Periodic(Ring(), 4),
    DirectedEquiDyn(3),
    UndirectedEquiStatic(3),
)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda overlay: type(overlay).__name__)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
def test_every_node_has_the_links_that_it_would_compute_itself(overlay, n):
    """The same peers with bitwise equal weights, among live rows only, and each pair once."""
    alive = np.zeros(len(PEERS), bool)
    alive[np.random.default_rng(n).permutation(len(PEERS))[:n]] = True
    members = ranked((PEERS[row] for row in np.flatnonzero(alive)), b"salt")
    schedule = Schedule(overlay, PEERS, b"salt")
    for number in (0, 1, 2, 9, 10):
        met = schedule.at(number, alive)
        found = {PEERS[row]: [] for row in np.flatnonzero(alive)}
        for one, other, forth, back in zip(*met.ends, *met.weights, strict=True):
            found[PEERS[one]].append((PEERS[other], (forth + back) / 2.0))
            found[PEERS[other]].append((PEERS[one], (forth + back) / 2.0))
        for peer, expected in found.items():
            assert tuple(sorted(expected)) == links(overlay, members, peer, number), (peer, number)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda overlay: type(overlay).__name__)
def test_weights_equal_the_mixing_matrix_s_in_both_directions(overlay):
    """A swap of messages needs the weight in each direction, not their mean."""
    for number in range(4):
        ranked = by_rank(overlay, 13, number)
        (one, other), (forth, back) = ranked.ends, ranked.weights
        weights = {(int(a), int(b)): w for a, b, w in zip(one, other, forth, strict=True)}
        weights |= {(int(b), int(a)): w for a, b, w in zip(one, other, back, strict=True)}
        rows = {(a, b): w for a in range(13) for b, w in overlay.row(a, 13, number).items()}
        assert {pair: weight for pair, weight in weights.items() if weight} == rows
        assert len(weights) == 2 * len(one)


def test_repeated_rounds_are_cached_until_members_change():
    schedule, alive = Schedule(OnePeerExponential(), PEERS, b""), np.ones(len(PEERS), bool)
    first = schedule.at(0, alive)
    assert schedule.at(5, alive) is first
    fewer = alive.copy()
    fewer[4] = False
    assert 4 not in schedule.at(0, fewer).ends
    assert schedule.at(0, alive) is not first
    assert np.array_equal(schedule.at(0, alive).ends, first.ends)


def test_an_overlay_undefined_for_the_number_of_members_is_refused():
    with pytest.raises(ValueError, match="power of two"):
        Schedule(Hypercube(), PEERS, b"").at(0, np.ones(len(PEERS), bool))


def settle(nodes):
    """Let all learn of the change; each updates in turn with its edges at the others, until nothing changes."""
    for me, node in nodes.items():
        node._rank(me, frozenset(nodes) - {me})
        node._edges &= node._alive
    moved = True
    while moved:
        moved = False
        for me in sorted(nodes):
            opened, closed = nodes[me].update(me, nodes.keys())
            assert all(nodes[peer].accept(me) for peer in opened)
            for peer in closed:
                nodes[peer].drop(me)
            moved |= bool(opened or closed)


@pytest.mark.slow
@given(degree=st.integers(1, 7), seed=seeds, size=st.integers(2, len(PEERS)))
@examples(15)
def test_sticky_edges_equal_those_that_nodes_compute(degree, seed, size):
    """Rings stored for all nodes at once and updated only beside a change, compared with a `StickyEdges` in every node."""
    chance, peers = np.random.default_rng(seed), PEERS[:size]
    rings, nodes = Rings(peers, degree, b"salt"), {}
    for _ in range(15):
        alive = [row for row in range(size) if peers[row] in nodes]
        gone = [row for row in alive if chance.random() < 0.15]
        come = [row for row in range(size) if row not in alive and chance.random() < 0.3]
        before = {(row, other) for row in alive for other in rings.edges[row]}
        moved = rings.change(gone, come)
        for row in gone:
            del nodes[peers[row]]
        nodes |= {peers[row]: StickyEdges(degree, b"salt") for row in come}
        settle(nodes)
        rows = {peer: row for row, peer in enumerate(peers)}
        assert rings.alive == len(nodes)
        for peer, node in nodes.items():
            assert tuple(sorted(peers[other] for other in rings.edges[rows[peer]])) == node.peers
            assert tuple(peers[other] for other in rings.targets(rows[peer])) == node.targets
        after = {(rows[peer], other) for peer in nodes for other in rings.edges[rows[peer]]}
        both_ways = [{pair for one in moves for pair in (one, one[::-1])} for moves in (moved.void, moved.closed, moved.opened)]
        assert (before - both_ways[0] | both_ways[2]) - both_ways[1] == after


@pytest.mark.slow
def test_one_join_or_leave_among_thousands_changes_a_handful_of_edges():
    """So churn costs in proportion to itself, not to the size of the swarm."""
    peers, alive = [f"peer {number}" for number in range(3100)], np.arange(3100) < 3000
    rings, used, opened, closed = Rings(peers, 6, b"salt"), alive.copy(), 0, 0
    rings.change((), np.flatnonzero(alive).tolist())
    for number in range(20):
        change = churn(FaultsSection(crash=2, join=2), 1, number, torch.from_numpy(alive), torch.from_numpy(used))
        come = [row for row, _ in change.joined]
        moved = rings.change(change.crashed, come)
        alive[list(change.crashed)] = False
        alive[come] = used[come] = True
        opened, closed = opened + len(moved.opened), closed + len(moved.closed)
        assert rings.alive == alive.sum() == 3000
    assert 0 < opened < 6 * 80
    assert closed < 80


NODES = [f"peer-{row:03d}" for row in range(40)]


def visits(members, degree=6):
    made = SlotSchedule(NODES, degree, b"salt", 0.5, seed=3)
    made.update(np.arange(40) < members)
    return made


@pytest.mark.parametrize(("members", "degree"), [(2, 6), (7, 6), (40, 6), (40, 3)])
def test_edges_are_symmetric_and_bounded_in_number(members, degree):
    edges = visits(members, degree).rings.edges
    for row in range(members):
        assert all(row in edges[other] for other in edges[row])
        assert 0 < len(edges[row]) <= degree + 1 + SPARE_EDGES


def test_a_node_makes_one_visit_a_slot_and_answers_few():
    made = visits(40)
    for slot in range(20):
        met = made.at(slot)
        assert max(Counter(met.ends[0].tolist()).values()) == 1
        assert max(Counter(met.ends[1].tolist()).values()) <= MAX_SERVED
        assert all(other in made.rings.edges[row] for row, other in zip(met.ends[0].tolist(), met.ends[1].tolist(), strict=True))


def test_mutual_visits_make_one_exchange():
    """One exchange serves both visits."""
    assert len(visits(2).at(0)) == 1


def test_every_edge_is_used_once_before_any_twice():
    made = visits(40)
    for slot in range(12):
        made.at(slot)
    for row in range(40):
        begun = [made.visited.get((row, other), -1) for other in made.rings.edges[row]]
        assert len(begun) <= 8
        assert min(begun) >= 12 - len(begun)


def test_slots_replay_and_differ_by_seed():
    one, again = visits(20), visits(20)
    other = SlotSchedule(NODES, 6, b"salt", 0.5, seed=4)
    other.update(np.arange(40) < 20)
    first, second, third = (made.at(0) for made in (one, again, other))
    assert first.ends[0].tolist() == second.ends[0].tolist()
    assert first.ends[0].tolist() != third.ends[0].tolist()


def test_departed_nodes_are_no_longer_visited_and_new_ones_are():
    made = visits(20)
    moved = made.update((np.arange(40) >= 2) & (np.arange(40) < 22))
    assert {row for pair in moved.void for row in pair} >= {0, 1}
    seen = set()
    for slot in range(8):
        met = made.at(slot)
        seen |= {*met.ends[0].tolist(), *met.ends[1].tolist()}
    assert seen == set(range(2, 22))
