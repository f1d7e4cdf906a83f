"""Contracts of every overlay: doubly stochastic matrices, links on which both ends agree, and theoretical mixing rates."""

import math

import numpy as np
import pytest

from starling.gossip.errors import ConfigError
from starling.gossip.overlay.catalogue import OVERLAYS, check, overlay
from starling.gossip.overlay.equitopo import UndirectedEquiDyn
from starling.gossip.overlay.links import links
from starling.gossip.overlay.measure import matrix, symmetrised
from starling.gossip.overlay.periodic import Periodic
from starling.gossip.overlay.static import Alone, Grid, Ring
from starling.gossip.overlay.sticky import Sticky
from starling.gossip.overlay.weights import Lazy

KINDS = sorted(OVERLAYS)
VARIANTS = {
    **{kind: {"kind": kind} for kind in KINDS},
    "grid max_degree": {"kind": "grid", "weights": "max_degree"},
    "erdos_renyi max_degree": {"kind": "erdos_renyi", "weights": "max_degree", "factor": 0.5},
    "lazy grid": {"kind": "grid", "weights": "lazy"},
    "lazy one_peer_exponential": {"kind": "one_peer_exponential", "weights": "lazy"},
    "ou_equi_dyn eta 1": {"kind": "ou_equi_dyn", "eta": 1.0},
    "d_equi_static wide": {"kind": "d_equi_static", "basis": 30},
    "periodic ring": {"kind": "ring", "average_every": 4},
    "periodic base_k overlap": {"kind": "base_k", "average_every": 3, "overlap": True},
    "periodic directed": {"kind": "one_peer_exponential", "average_every": 3},
    "repeated base_k": {"kind": "base_k", "gossips": 3},
}
APERIODIC = {"random_matching", "od_equi_dyn", "ou_equi_dyn", "ou_equi_dyn eta 1", "rendezvous", "pull"}
PULLED = {"pull"}
"""Columns sum to 1 in expectation only: models are asked for, no difference is applied by both ends."""


def make(name, k=2):
    return overlay(k=k, seed=11, **VARIANTS[name])


def sizes(name, largest):
    defined = {"hypercube": lambda n: n & (n - 1) == 0, "hyper_hypercube": lambda n: 2**20 * 3**20 % n == 0}.get(name, bool)
    return [n for n in range(1, largest + 1) if defined(n)]


def rounds(part, n, most=12):
    """Return all rounds of a period, thinned if it is long, and two beyond it."""
    period = part.period(n) or most
    return sorted({*range(0, period, math.ceil(period / most)), period, period + 1})


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_every_matrix_is_doubly_stochastic_and_nonnegative(name):
    part = make(name)
    for n in sizes(name, 33):
        for r in rounds(part, n, most=4):
            W = matrix(part, n, r)
            assert W.min() >= 0.0, (n, r)
            assert name in PULLED or np.allclose(W.sum(axis=0), 1.0, atol=1e-12), (n, r)
            assert np.allclose(W.sum(axis=1), 1.0, atol=1e-12), (n, r)
            assert not part.symmetric or (W == W.T).all(), (n, r)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_sequence_repeats_after_its_period(name):
    part = make(name)
    for n in set(sizes(name, 16)) & {1, 2, 3, 4, 5, 6, 8, 12, 15, 16}:
        period = part.period(n)
        assert (period is None) == (name in APERIODIC)
        if period is None:
            continue
        for r in (0, 1, period - 1):
            assert (matrix(part, n, r) == matrix(part, n, r + period)).all()


@pytest.mark.parametrize("name", VARIANTS)
def test_rows_have_only_other_ranks_with_positive_weights(name):
    part = make(name)
    for n in sizes(name, 20):
        for rank in range(n):
            row = part.row(rank, n, 3)
            assert rank not in row
            assert all(0 <= j < n and w > 0 for j, w in row.items())


MOST_PEERS = {
    "ring": lambda n: 2,
    "grid": lambda n: 4,
    "torus": lambda n: 4,
    "static_exponential": lambda n: (n - 1).bit_length(),
    "d_equi_static": lambda n: math.ceil(2 * math.log(n)),
    "u_equi_static": lambda n: 2 * math.ceil(2 * math.log(n)),
    "hyper_hypercube": lambda n: 2,
    "simple_base_k": lambda n: 2,
    "base_k": lambda n: 2,
    "pull": lambda n: 2,
    **dict.fromkeys(("complete", "half_random", "erdos_renyi"), lambda n: n - 1),
    "alone": lambda n: 0,
}
"""What a round costs at most; one peer for all other kinds."""


@pytest.mark.parametrize("kind", KINDS)
def test_peers_per_round_are_within_the_kind_s_declared_degree(kind):
    part = make(kind)
    for n in sizes(kind, 40):
        most = MOST_PEERS.get(kind, lambda n: 1)(n)
        for r in rounds(part, n, most=4):
            assert max(len(part.row(rank, n, r)) for rank in range(n)) <= most


@pytest.mark.parametrize("name", sorted(set(VARIANTS) - {"alone"}))
def test_over_a_period_information_reaches_all_nodes(name):
    """Or over 40 rounds of randomly drawn kinds: without it there is no consensus."""
    part = make(name)
    for n in (set(sizes(name, 33)) & {2, 3, 8, 12, 16, 27, 33}) - {1}:
        met = np.eye(n, dtype=bool)
        for r in range(min(part.period(n) or 40, 200)):
            met |= matrix(part, n, r) > 0
        assert (np.linalg.matrix_power(met.astype(float), n) > 0).all()


@pytest.mark.parametrize("name", VARIANTS)
def test_equal_parameters_give_equal_rows_and_the_seed_is_the_only_randomness(name):
    for n in set(sizes(name, 16)) & {4, 9, 16}:
        one, other = make(name), make(name)
        assert [one.row(rank, n, 5) for rank in range(n)] == [other.row(rank, n, 5) for rank in reversed(range(n))][::-1]
    seeded = {"erdos_renyi", "half_random", "d_equi_static", "u_equi_static", "random_matching", "od_equi_dyn"}
    if name in seeded | {"ou_equi_dyn", "rendezvous", "sticky", "pull"}:
        drawn = [[overlay(name, 1, seed).row(rank, 16, 5) for rank in range(16)] for seed in range(4)]
        assert any(rows != drawn[0] for rows in drawn)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(VARIANTS) - PULLED))
def test_both_ends_of_a_link_give_it_the_same_weight_and_the_links_apply_the_symmetrised_matrix(name):
    part = make(name)
    for n in sizes(name, 25):
        peers = [f"peer{i:02}" for i in range(n)]
        for r in rounds(part, n, most=3):
            applied = np.eye(n)
            theta = {(me, peer): w for me in peers for peer, w in links(part, peers, me, r)}
            for (me, peer), w in theta.items():
                assert theta[peer, me] == w
                assert 0.0 < w < 1.0
                i, j = peers.index(me), peers.index(peer)
                applied[i] += w * (np.eye(n)[j] - np.eye(n)[i])
            assert np.allclose(applied, symmetrised(matrix(part, n, r)), atol=1e-12)
            assert np.allclose(applied.sum(axis=0), 1.0, atol=1e-12)


def test_links_are_sorted_and_a_stranger_or_a_lone_member_has_none():
    peers = ("c", "a", "d", "b")
    for part in map(make, VARIANTS):
        mine = links(part, peers, "a", 0)
        assert list(mine) == sorted(mine)
        assert links(part, peers, "elsewhere", 0) == ()
        assert links(part, ("a",), "a", 5) == ()


def test_a_non_circulant_directed_overlay_is_evaluated_row_by_row():
    class Star:
        """All ranks send to rank 0, which sends to nobody."""

        symmetric = False

        def row(self, rank, n, round):
            return {0: 0.5} if rank else {}

        def period(self, n):
            return 1

    assert links(Star(), ("a", "b", "c"), "a", 0) == (("b", 0.25), ("c", 0.25))
    assert links(Star(), ("a", "b", "c"), "b", 0) == (("a", 0.25),)


def test_the_catalogue_passes_each_kind_its_parameters():
    assert overlay("sticky", k=1, seed=4) == Sticky(4)
    assert overlay("ring", k=1, seed=4) == Ring()
    assert overlay("ou_equi_dyn", k=1, seed=4, eta=0.25) == UndirectedEquiDyn(4, 0.25)
    assert overlay("grid", k=1, seed=4, weights="lazy") == Lazy(Grid())
    assert overlay("alone", k=2, seed=4, average_every=5, overlap=True) == Periodic(Alone(), 5, 2, overlap=True)


WRONG = [
    ({"kind": "mobius"}, "overlay.kind: 'mobius' is unknown, choose one of alone, base_k"),
    ({"kind": "mobius", "weights": "uniform"}, "overlay.kind: 'mobius' is unknown"),
    ({"kind": "base_k", "k": 0}, "overlay: k must be >= 1 and <= 32, got 0"),
    ({"kind": "simple_base_k", "k": 0}, "k must be >= 1"),
    ({"kind": "hyper_hypercube", "k": 0}, "k must be >= 1"),
    ({"kind": "pull", "k": 0}, "k must be >= 1 and <= 32, got 0"),
    ({"kind": "ring", "eta": 0.5}, "overlay.eta: ring has no such key"),
    ({"kind": "grid", "weights": "fair"}, "weights must be one of metropolis_hastings, max_degree, uniform, got 'fair'"),
    ({"kind": "torus", "weights": "uniform"}, "overlay.weights: torus has its own weights"),
    ({"kind": "half_random", "weights": "fair"}, "weights must be one of"),
    ({"kind": "erdos_renyi", "weights": "fair"}, "weights must be one of"),
    ({"kind": "erdos_renyi", "factor": 0.0}, "factor must be finite and > 0 and <= 1000000, got 0"),
    ({"kind": "od_equi_dyn", "eta": 0.0}, "eta must be finite and > 0 and <= 1, got 0.0"),
    ({"kind": "ou_equi_dyn", "eta": 1.5}, "eta must be finite and > 0 and <= 1, got 1.5"),
    ({"kind": "d_equi_static", "basis": 0}, "basis must be >= 1 and <= 1000000, got 0"),
    ({"kind": "u_equi_static", "basis": 0}, "basis must be >= 1 and <= 1000000, got 0"),
    ({"kind": "ring", "average_every": -1}, "average_every must be >= 1, got -1"),
    ({"kind": "ring", "average_every": 2, "k": 0}, "k must be >= 1 and <= 32, got 0"),
    ({"kind": "ring", "overlap": True}, "overlay.overlap: there is nothing to overlap with"),
]


@pytest.mark.parametrize(("asked", "said"), WRONG)
def test_impossible_values_are_refused_with_key_and_bound(asked, said):
    with pytest.raises(ConfigError, match=said):
        overlay(**{"k": 1, "seed": 4, **asked})


REFUSED = [
    ({"kind": "base_k", "k": 3}, 3, "overlay.k: must be < n = 3, got 3: .*2305.11420.*try k = 2"),
    ({"kind": "simple_base_k", "k": 9}, 5, "must be < n = 5, got 9"),
    ({"kind": "hyper_hypercube", "k": 4}, 4, "must be < n = 4, got 4"),
    ({"kind": "pull", "k": 6}, 4, r"overlay\.k: must be < n = 4, got 6: a node meets at most the n − 1 others .*; try k = 3"),
    ({"kind": "ring", "k": 6, "average_every": 3}, 6, "must be < n = 6, got 6"),
    ({"kind": "base_k", "k": 6, "average_every": 3, "weights": "lazy"}, 6, "must be < n = 6, got 6"),
    ({"kind": "hyper_hypercube", "k": 2}, 10, r"k = 2 needs members whose prime factors are at most k \+ 1 = 3, got 10"),
    ({"kind": "hypercube", "average_every": 9}, 12, "power of two of members, got 12: the next one is 16"),
    ({"kind": "half_random"}, 5000, "at most 4096 members, got 5000"),
    ({"kind": "d_equi_static", "basis": 1}, 64, "1 shifts leaves at most 0.8 .* 64 members, take about 2 ln n = 9"),
]


@pytest.mark.parametrize(("asked", "n", "said"), REFUSED)
def test_overlays_undefined_for_a_known_number_of_members_are_refused(asked, n, said):
    with pytest.raises(ConfigError, match=said):
        check(overlay(**{"k": 1, "seed": 4, **asked}), n)


@pytest.mark.parametrize("name", VARIANTS)
def test_all_other_overlays_pass_the_check_even_for_a_lone_member(name):
    for n in sizes(name, 20):
        check(make(name, k=1 if n < 3 else 2), n)
