"""The drawn neighbors of a node are those it exchanges with; links between other nodes are drawn where they are known."""

import pytest

from starling.gossip.overlay import catalogue
from starling.gossip.overlay.sticky import StickyEdges
from starling.node.daemon.membership.neighbors import MAX_DRAWN, Caps, LinkMap, OverlayNeighbors, RandomNeighbors, own_links, secret_draws


def members(n):
    return tuple(sorted(f"peer-{number:03d}" for number in range(n)))


def neighbors(overlay, everybody, me):
    return OverlayNeighbors(overlay, lambda: everybody, me, lambda _round: b"salt")


def drawn(everybody, me):
    return RandomNeighbors(lambda: everybody, me, 3, Caps(), lambda _peer: True, secret_draws(b"secret", 1))


def met(picture, me):
    """Return the members linked with `me`."""
    pairs = [{picture.ranks[a], picture.ranks[b]} for a, b in picture.links]
    return {peer for pair in pairs if me in pair for peer in pair - {me}}


@pytest.mark.parametrize("kind", ["base_k", "ring", "one_peer_exponential", "sticky", "static_exponential", "ou_equi_dyn", "complete"])
@pytest.mark.parametrize("n", [1, 6, 13])
def test_exactly_the_links_of_the_round_are_drawn(kind, n):
    overlay, everybody = catalogue.overlay(kind, 2, 5), members(n)
    for turn in range(4):
        pictures = {me: neighbors(overlay, everybody, me).link_map(turn) for me in everybody}
        assert len(set(pictures.values())) == 1
        picture = pictures[everybody[0]]
        assert sorted(picture.ranks) == list(everybody)
        assert all(low < high for low, high in picture.links)
        for me in everybody:
            assert met(picture, me) == set(neighbors(overlay, everybody, me).links(turn))


def test_a_drawing_is_made_once_per_round_and_member_list():
    class Counting:
        symmetric, rows = True, 0

        def row(self, rank, n, round):
            self.rows += 1
            return {(rank + 1) % n: 0.5}

        def period(self, n):
            return 1

    overlay, everybody = Counting(), members(5)
    near = OverlayNeighbors(overlay, lambda: everybody, everybody[0], lambda _round: b"salt")
    assert near.link_map(0) == near.link_map(0)
    assert overlay.rows == 5
    near.link_map(1)
    everybody = members(4)
    assert len(near.link_map(1).ranks) == 4
    assert overlay.rows == 5 + 5 + 4


def test_in_a_large_swarm_a_node_draws_its_peers():
    overlay, everybody = catalogue.overlay("ring", 2, 5), members(MAX_DRAWN + 1)
    near = neighbors(overlay, everybody, everybody[7])
    picture = near.link_map(0)
    assert met(picture, everybody[7]) == set(near.links(0))
    assert set(picture.ranks) == {everybody[7], *near.links(0)}
    for me in everybody:
        complete = neighbors(catalogue.overlay("complete", 2, 5), everybody, me).link_map(0)
        assert len(complete.ranks) == MAX_DRAWN
        assert len(met(complete, me)) == MAX_DRAWN - 1


def test_links_of_other_nodes_are_unknown_where_draws_are_private():
    everybody = members(9)
    own = drawn(everybody, everybody[2])
    assert met(own.link_map(4), everybody[2]) == set(own.weights(4))
    assert len(own.link_map(4).links) == 3
    assert own.link_map(4) is own.link_map(4)
    assert own.link_map(4) != drawn(everybody, everybody[3]).link_map(4)


def test_sticky_edges_are_the_current_ones_and_a_removed_node_draws_none():
    everybody = members(7)
    edges = StickyEdges(2, b"salt")
    edges.update(everybody[1], everybody)
    assert met(own_links(everybody, everybody[1], edges.peers), everybody[1]) == set(edges.peers)
    assert own_links(everybody, "stranger", edges.peers) == LinkMap(everybody)
    assert own_links((), "alone", ()) == LinkMap()


def test_an_overlay_impossible_for_the_number_of_members_draws_no_links():
    near = neighbors(catalogue.overlay("hypercube", 2, 5), members(5), members(5)[0])
    with pytest.raises(ValueError, match="power of two"):
        near.links(0)
    assert near.link_map(0).links == ()
    assert sorted(near.link_map(0).ranks) == list(members(5))
