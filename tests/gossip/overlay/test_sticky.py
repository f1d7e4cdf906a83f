"""Sticky edges: few, symmetric, connected, and hardly changed by other members' joins and leaves."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.overlay.measure import residual
from starling.gossip.overlay.sticky import SPARE_EDGES, StickyEdges
from tests.harness.dense_weights import metropolis_hastings
from tests.strategies import examples

DEGREE = 6


class Swarm:
    def __init__(self, n, degree=DEGREE):
        self.degree = degree
        self.nodes = {}
        self.join(*(f"peer{i}" for i in range(n)))

    def join(self, *peers):
        self.nodes |= {peer: StickyEdges(self.degree, b"salt") for peer in peers}
        self.settle()

    def leave(self, peer):
        del self.nodes[peer]
        self.settle()

    def settle(self):
        busy = True
        while busy:
            busy = False
            for me, node in sorted(self.nodes.items()):
                to_open, to_close = node.update(me, self.nodes.keys() - {me})
                for peer in to_open:
                    if not self.nodes[peer].accept(me):
                        node.drop(peer)
                for peer in to_close:
                    self.nodes[peer].drop(me)
                busy = busy or bool(to_open or to_close)

    def pairs(self):
        return {frozenset((me, peer)) for me, node in self.nodes.items() for peer in node.peers}

    def adjacency(self):
        peers = sorted(self.nodes)
        return np.array([[other in self.nodes[me].peers for other in peers] for me in peers])

    def churn(self, events, seed):
        """Alternate joins and leaves; yield the member of each."""
        chance = random.Random(seed)
        for event in range(events):
            if event % 2:
                peer = chance.choice(sorted(self.nodes))
                self.leave(peer)
            else:
                peer = f"late{event}"
                self.join(peer)
            yield peer


@examples(20)
@given(n=st.integers(1, 24), degree=st.integers(1, 8))
def test_targets_are_symmetric_few_and_connect_everybody(n, degree):
    swarm = Swarm(n, degree)
    for me, node in swarm.nodes.items():
        assert all(me in swarm.nodes[peer].targets for peer in node.targets)
        assert len(node.targets) <= degree + degree % 2
        assert set(node.targets) == set(node.peers)
    if n > 1:
        assert residual(metropolis_hastings(swarm.adjacency())) < 1.0 - 1e-6


def test_a_swarm_that_fits_into_the_degree_is_complete():
    swarm = Swarm(DEGREE + 1)
    assert all(len(node.peers) == DEGREE for node in swarm.nodes.values())


@pytest.mark.slow
@pytest.mark.parametrize("n", [16, 64])
def test_after_random_churn_the_graph_is_symmetric_connected_bounded_and_still_mixes(n):
    swarm = Swarm(n)
    for _ in swarm.churn(100, seed=1):
        A = swarm.adjacency()
        assert (A == A.T).all()
        assert A.sum(axis=1).max() <= DEGREE + SPARE_EDGES
        assert residual(metropolis_hastings(A)) < 0.8


@pytest.mark.slow
def test_one_join_or_leave_changes_few_edges_of_the_whole_swarm():
    """Of about 210 edges of the others, a join closes about one, and a leave is repaired by about three."""
    swarm = Swarm(64)
    before = swarm.pairs()
    changed = {"join": [], "leave": []}
    for peer in swarm.churn(120, seed=2):
        after = swarm.pairs()
        own = sum(peer in pair for pair in after)
        assert own <= DEGREE
        changed["join" if own else "leave"].append(sum(peer not in pair for pair in before ^ after))
        before = after
    assert len(changed["join"]) == len(changed["leave"]) == 60
    assert np.mean(changed["join"]) < 1.5
    assert np.mean(changed["leave"]) < 3.5
    assert max(changed["join"] + changed["leave"]) <= DEGREE


def test_only_targets_are_opened_and_no_target_is_closed():
    swarm = Swarm(30)
    for _ in swarm.churn(20, seed=3):
        for me, node in swarm.nodes.items():
            assert node.update(me, swarm.nodes.keys() - {me}) == ((), ())
            assert set(node.targets) <= set(node.peers)


def test_a_former_targets_edge_stays_while_the_degree_allows():
    swarm = Swarm(40)
    me, node = "peer0", swarm.nodes["peer0"]
    beside = node.targets[0]
    late = (f"late{i}" for i in range(1000))
    while beside in node.targets:
        swarm.join(next(late))
        if len(node.peers) < DEGREE + SPARE_EDGES:
            assert beside in node.peers
    assert all(me in swarm.nodes[peer].peers for peer in node.peers)


def test_a_dead_peer_s_edge_is_forgotten_without_a_close():
    node = StickyEdges(DEGREE, b"salt")
    node.update("me", {"a", "b", "c"})
    opened, closed = node.update("me", {"a", "b"})
    assert (opened, closed) == ((), ())
    assert node.peers == ("a", "b")


def test_a_refused_edge_is_tried_again_at_the_next_update():
    node = StickyEdges(DEGREE, b"salt")
    node.update("me", {"a", "b"})
    node.drop("a")
    assert node.peers == ("b",)
    assert node.update("me", {"a", "b"}) == (("a",), ())


def test_requests_are_accepted_up_to_the_spare_edges_and_from_targets_always():
    alive = {f"peer{i}" for i in range(60)}
    node = StickyEdges(DEGREE, b"salt")
    opened, _ = node.update("me", alive)
    strangers = sorted(alive.difference(opened))
    taken = [peer for peer in strangers if node.accept(peer)]
    assert len(node.peers) == DEGREE + SPARE_EDGES
    assert len(taken) == DEGREE + SPARE_EDGES - len(opened)
    assert all(node.accept(peer) for peer in opened)


def test_surplus_edges_farthest_in_the_rings_are_closed():
    alive = {f"peer{i}" for i in range(60)}
    node = StickyEdges(2, b"salt")
    node.update("me", alive)
    seat = {}
    for peer in sorted(alive):
        probe = StickyEdges(2, b"salt")
        probe.update(peer, {*alive, "me"} - {peer})
        seat[peer] = probe.targets
    near = next(p for p in seat[node.targets[0]] if p != "me")
    far = next(p for p in sorted(alive) if not {*node.targets, near} & {p, *seat[p]})
    node.drop(node.targets[0])
    assert all(map(node.accept, (near, far, "peer59" if "peer59" not in (near, far) else "peer58")))
    _, closed = node.update("me", alive)
    assert len(closed) == 1
    assert near not in closed


def test_a_degree_below_one_is_refused():
    with pytest.raises(ValueError, match="degree must be >= 1"):
        StickyEdges(0, b"salt")
