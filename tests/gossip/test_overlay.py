"""What every overlay promises: doubly stochastic matrices, links whose ends agree, and the mixing that theory gives."""

import math
from functools import reduce
from typing import get_args

import msgspec
import numpy as np
import pytest

from gossip.errors import ConfigError
from gossip.overlay.catalogue import OVERLAYS, check, overlay
from gossip.overlay.equitopo import UndirectedEquiDyn
from gossip.overlay.grid import Grid
from gossip.overlay.lazy import Lazy
from gossip.overlay.links import links
from gossip.overlay.one_peer import Hypercube, OnePeerExponential, RandomMatching
from gossip.overlay.periodic import Periodic
from gossip.overlay.static import Alone, Ring, StaticExponential
from gossip.overlay.sticky import Sticky
from gossip.overlay.weights import matrix, metropolis_hastings, residual, spectral_gap, symmetrised
from node.config import OverlaySection

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
}
APERIODIC = {"random_matching", "od_equi_dyn", "ou_equi_dyn", "ou_equi_dyn eta 1", "rendezvous"}


def make(name, k=2):
    return overlay(k=k, seed=11, **VARIANTS[name])


def sizes(name, largest):
    """Every n for which the kind is defined."""
    defined = {
        "hypercube": lambda n: n & (n - 1) == 0,
        "hyper_hypercube": lambda n: 2**20 * 3**20 % n == 0,
    }.get(name, bool)
    return [n for n in range(1, largest + 1) if defined(n)]


def rounds(part, n, most=12):
    """All rounds of a period, thinned where it is long, and two beyond."""
    period = part.period(n) or most
    return sorted({*range(0, period, math.ceil(period / most)), period, period + 1})


def product(part, n, count, start=0):
    return reduce(lambda P, r: matrix(part, n, r) @ P, range(start, start + count), np.eye(n))


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_every_matrix_is_doubly_stochastic_and_nonnegative(name):
    """Row sums keep a consensus, column sums keep the average: the two facts every convergence proof begins with."""
    part = make(name)
    for n in sizes(name, 64):
        for r in rounds(part, n, most=6):
            W = matrix(part, n, r)
            assert W.min() >= 0.0, (n, r)
            assert np.allclose(W.sum(axis=0), 1.0, atol=1e-12), (n, r)
            assert np.allclose(W.sum(axis=1), 1.0, atol=1e-12), (n, r)
            assert not part.symmetric or (W == W.T).all(), (n, r)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_sequence_repeats_after_its_period(name):
    """Nodes that take the round modulo the period, and those that do not, meet the same peers."""
    part = make(name)
    for n in set(sizes(name, 16)) & {1, 2, 3, 4, 5, 6, 8, 12, 15, 16}:
        period = part.period(n)
        assert (period is None) == (name in APERIODIC)
        if period is None:
            continue
        for r in (0, 1, period - 1):
            assert (matrix(part, n, r) == matrix(part, n, r + period)).all()


@pytest.mark.parametrize("name", VARIANTS)
def test_a_row_names_others_only_and_gives_them_positive_weight(name):
    part = make(name)
    for n in sizes(name, 20):
        for rank in range(n):
            row = part.row(rank, n, 3)
            assert rank not in row
            assert all(0 <= j < n and w > 0 for j, w in row.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_both_ends_of_a_link_give_it_the_same_weight_and_the_links_apply_the_symmetrised_matrix(name):
    """Exchanges are antisymmetric: one theta per link, the same bits at both ends, or the average moves."""
    part = make(name)
    for n in sizes(name, 33):
        peers = [f"peer{i:02}" for i in range(n)]
        for r in rounds(part, n, most=4):
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


def test_a_directed_overlay_that_is_not_circulant_is_asked_row_by_row():
    class Star:
        """Rank 0 gives to nobody; all give to rank 0."""

        symmetric = False

        def row(self, rank, n, round):
            return {0: 0.5} if rank else {}

        def period(self, n):
            return 1

    assert links(Star(), ("a", "b", "c"), "a", 0) == (("b", 0.25), ("c", 0.25))
    assert links(Star(), ("a", "b", "c"), "b", 0) == (("a", 0.25),)


@pytest.mark.parametrize("n", [4, 6, 8, 12, 16, 24, 32, 48, 64, 100, 128])
def test_the_static_exponential_gap_is_exactly_two_by_tau_plus_one_for_even_n(n):
    """Ying et al. 2021, theorem 1."""
    tau = math.ceil(math.log2(n))
    assert spectral_gap(matrix(StaticExponential(), n, 0)) == pytest.approx(2 / (tau + 1), abs=1e-12)


@pytest.mark.parametrize(
    ("n", "gap"),
    [(5, 0.7500), (7, 0.6464), (9, 0.5582), (15, 0.5101), (17, 0.4524), (31, 0.4377), (33, 0.3922), (63, 0.3891)],
)
def test_the_static_exponential_gap_is_larger_for_odd_n(n, gap):
    assert spectral_gap(matrix(StaticExponential(), n, 0)) == pytest.approx(gap, abs=5e-5)
    assert gap > 2 / (math.ceil(math.log2(n)) + 1)


@pytest.mark.parametrize(
    ("n", "gap"), [(8, 0.1953), (16, 0.0507), (25, 0.0209), (33, 0.0120), (36, 0.0101), (64, 0.0032), (100, 0.0013)]
)
def test_the_ring_gap_shrinks_with_the_square_of_n(n, gap):
    W = matrix(Ring(), n, 0)
    assert spectral_gap(W) == pytest.approx(gap, abs=5e-5)
    assert spectral_gap(W) == pytest.approx(2 / 3 * (1 - math.cos(2 * math.pi / n)), abs=1e-12)
    assert np.allclose(W, metropolis_hastings(W > 0))


@pytest.mark.parametrize(
    ("n", "left"),
    [
        (3, 0.2500),
        (5, 0.2023),
        (6, 0.2165),
        (7, 0.1250),
        (9, 0.1175),
        (10, 0.1924),
        (12, 0.2091),
        (15, 0.0625),
        (17, 0.0614),
        (20, 0.1900),
        (24, 0.2073),
        (25, 0.1921),
        (31, 0.0313),
        (33, 0.0311),
        (48, 0.2069),
        (63, 0.0156),
    ],
)
def test_one_peer_exponential_leaves_what_the_table_says_after_a_period(n, left):
    part = OnePeerExponential()
    assert residual(product(part, n, part.period(n))) == pytest.approx(left, abs=5e-4)


def test_one_peer_exponential_is_exact_for_powers_of_two_only_and_never_leaves_more_than_a_quarter():
    part = OnePeerExponential()
    for n in range(2, 41):
        for start in (0, 1):
            left = residual(product(part, n, part.period(n), start))
            assert left < 1e-12 if n & (n - 1) == 0 else 1e-3 < left <= 0.25 + 1e-12


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 32])
def test_the_hypercube_is_exact_from_any_round(n):
    part = Hypercube()
    for start in range(3):
        assert residual(product(part, n, part.period(n), start)) < 1e-12


def test_the_hypercube_says_which_size_would_do():
    with pytest.raises(ValueError, match="the next one is 16"):
        Hypercube().row(0, 9, 0)


@pytest.mark.parametrize(("n", "rate"), [(16, 0.509), (33, 0.540)])
def test_a_random_matching_halves_the_squared_disagreement_whatever_n(n, rate):
    """lam_max(E[WᵀW] − J), the worst direction; W is a projection, so WᵀW = W."""
    mean = sum(matrix(RandomMatching(5), n, r) for r in range(1500)) / 1500
    assert residual(mean) == pytest.approx(rate, abs=0.03)


def test_a_random_matching_is_perfect_and_leaves_one_node_idle_if_n_is_odd():
    for n in range(2, 20):
        for r in range(5):
            row = [RandomMatching(7).row(rank, n, r) for rank in range(n)]
            assert sum(not entries for entries in row) == n % 2


def test_random_matchings_never_change_between_versions():
    """Nodes of different versions meet: the shuffle is part of the protocol."""
    partners = [next(iter(RandomMatching(42).row(rank, 8, 3)), None) for rank in range(8)]
    assert partners == [7, 3, 5, 1, 6, 2, 4, 0]


@pytest.mark.parametrize("seed", [0, 1, 9])
def test_the_sticky_schedule_is_exact_in_every_turn_for_powers_of_two(seed):
    """Pairing along cycles is one-peer exponential averaging, made symmetric."""
    for tau in range(1, 7):
        for turn in range(2):
            assert residual(product(Sticky(seed), 1 << tau, tau, start=turn * tau)) < 1e-12


@pytest.mark.parametrize("n", [3, 6, 7, 12, 24, 33, 48])
def test_the_sticky_schedule_meets_every_exponential_neighbor_and_nobody_else(n):
    part = Sticky(3)
    tau = math.ceil(math.log2(n))
    for rank in (0, 1, n - 1):
        met = {peer for r in range(part.period(n)) for peer in part.row(rank, n, r)}
        assert met == {(rank + sign * 2**j) % n for j in range(tau) for sign in (1, -1)}


@pytest.mark.parametrize("n", [5, 9, 33])
def test_on_an_odd_cycle_everybody_is_idle_equally_often(n):
    part = Sticky(3)
    period = part.period(n)
    idle = [sum(not part.row(rank, n, r) for r in range(period)) for rank in range(n)]
    assert set(idle) == {period // n}


@pytest.mark.parametrize("n", [12, 24, 33, 48])
def test_the_sticky_schedule_mixes_about_as_fast_as_random_matchings(n):
    """A random matching leaves about sqrt(1/2) of a disagreement a round: keeping the same few peers costs little."""
    part = Sticky(3)
    tau = math.ceil(math.log2(n))
    left = residual(product(part, n, 6 * tau)) ** (1 / (6 * tau))
    assert left < 0.80


def test_the_catalogue_has_the_names_of_the_configuration_and_gives_each_kind_what_it_takes():
    (names,) = (get_args(f.type) for f in msgspec.structs.fields(OverlaySection) if f.name == "kind")
    assert set(OVERLAYS) == set(names)
    assert overlay("sticky", k=1, seed=4) == Sticky(4)
    assert overlay("ring", k=1, seed=4) == Ring()
    assert overlay("ou_equi_dyn", k=1, seed=4, eta=0.25) == UndirectedEquiDyn(4, 0.25)
    assert overlay("grid", k=1, seed=4, weights="lazy") == Lazy(Grid())
    assert overlay("alone", k=2, seed=4, average_every=5, overlap=True) == Periodic(Alone(), 5, 2, overlap=True)


WRONG = [
    ({"kind": "mobius"}, "overlay.kind: 'mobius' is unknown, choose one of alone, base_k"),
    ({"kind": "mobius", "weights": "uniform"}, "overlay.kind: 'mobius' is unknown"),
    ({"kind": "base_k", "k": 0}, "overlay: k must be >= 1, got 0"),
    ({"kind": "simple_base_k", "k": 0}, "k must be >= 1"),
    ({"kind": "hyper_hypercube", "k": 0}, "k must be >= 1"),
    ({"kind": "ring", "eta": 0.5}, "overlay.eta: ring has no such key"),
    (
        {"kind": "grid", "weights": "fair"},
        "weights must be one of metropolis_hastings, max_degree, uniform, got 'fair'",
    ),
    ({"kind": "torus", "weights": "uniform"}, "overlay.weights: torus has a rule of its own"),
    ({"kind": "half_random", "weights": "fair"}, "weights must be one of"),
    ({"kind": "erdos_renyi", "weights": "fair"}, "weights must be one of"),
    ({"kind": "erdos_renyi", "factor": 0.0}, "factor must be > 0, got 0.0: .* not connected"),
    ({"kind": "od_equi_dyn", "eta": 0.0}, r"eta must be in \(0, 1\], got 0.0"),
    ({"kind": "ou_equi_dyn", "eta": 1.5}, r"eta must be in \(0, 1\], got 1.5"),
    ({"kind": "d_equi_static", "basis": 0}, "basis must be >= 1, got 0"),
    ({"kind": "u_equi_static", "basis": 0}, "basis must be >= 1, got 0"),
    ({"kind": "ring", "average_every": -1}, "average_every must be >= 1, got -1"),
    ({"kind": "ring", "average_every": 2, "k": 0}, "k must be >= 1, got 0"),
    ({"kind": "ring", "overlap": True}, "overlay.overlap: there is nothing to overlap with"),
]


@pytest.mark.parametrize(("asked", "said"), WRONG)
def test_what_cannot_be_had_is_refused_with_the_key_and_the_bound(asked, said):
    with pytest.raises(ConfigError, match=said):
        overlay(**{"k": 1, "seed": 4, **asked})


REFUSED = [
    ({"kind": "base_k", "k": 3}, 3, "overlay.k: must be < n = 3, got 3: .*2305.11420.*try k = 2"),
    ({"kind": "simple_base_k", "k": 9}, 5, "must be < n = 5, got 9"),
    ({"kind": "hyper_hypercube", "k": 4}, 4, "must be < n = 4, got 4"),
    ({"kind": "ring", "k": 6, "average_every": 3}, 6, "must be < n = 6, got 6"),
    ({"kind": "base_k", "k": 6, "average_every": 3, "weights": "lazy"}, 6, "must be < n = 6, got 6"),
    (
        {"kind": "hyper_hypercube", "k": 2},
        10,
        r"k = 2 needs members whose prime factors are at most k \+ 1 = 3, got 10",
    ),
    ({"kind": "hypercube", "average_every": 9}, 12, "power of two of members, got 12: the next one is 16"),
    ({"kind": "half_random"}, 5000, "at most 4096 members, got 5000"),
    ({"kind": "d_equi_static", "basis": 1}, 64, "1 shifts leaves at most 0.8 .* 64 members, take about 2 ln n = 9"),
]


@pytest.mark.parametrize(("asked", "n", "said"), REFUSED)
def test_what_cannot_be_had_for_so_many_members_is_refused_where_their_number_is_known(asked, n, said):
    with pytest.raises(ConfigError, match=said):
        check(overlay(**{"k": 1, "seed": 4, **asked}), n)


@pytest.mark.parametrize("name", VARIANTS)
def test_everything_else_passes_the_check_down_to_a_lone_member(name):
    for n in sizes(name, 20):
        check(make(name, k=1 if n < 3 else 2), n)


def test_metropolis_hastings_needs_only_degrees_and_is_doubly_stochastic():
    star = np.zeros((5, 5), dtype=bool)
    star[0, 1:] = star[1:, 0] = True
    W = metropolis_hastings(star)
    assert W[0, 1] == 1 / 5
    assert W[1, 1] == pytest.approx(4 / 5)
    assert np.allclose(W.sum(axis=0), 1.0)
