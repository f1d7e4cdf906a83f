"""Static graphs: spectral gaps, edge weights, and drawing from a seed."""

import math
import time
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.bounds import WeightRule
from starling.gossip.overlay import random_graph
from starling.gossip.overlay.catalogue import OVERLAYS, overlay
from starling.gossip.overlay.equitopo import left
from starling.gossip.overlay.measure import matrix, residual
from starling.gossip.overlay.one_peer import OnePeerExponential
from starling.gossip.overlay.random_graph import ErdosRenyi, HalfRandom
from starling.gossip.overlay.static import Complete, Grid, Ring, StaticExponential, Torus, sides
from starling.gossip.overlay.weights import Lazy
from tests.harness.dense_weights import lazy, max_degree, metropolis_hastings, uniform
from tests.strategies import examples

RULES = get_args(WeightRule)
GAPS = {
    8: (0.1953, 0.1464, 0.5000, 0.26, 0.23, 0.5000),
    16: (0.0507, 0.1314, 0.4000, 0.20, 0.36, 0.4000),
    25: (0.0209, 0.0838, 0.2764, 0.18, 0.43, 0.489),
    33: (0.0120, 0.0189, 0.0635, 0.19, 0.51, 0.3922),
    36: (0.0101, 0.0579, 0.2000, 0.21, 0.53, 0.286),
    64: (0.0032, 0.0323, 0.1172, 0.20, 0.60, 0.2857),
    100: (0.0013, 0.0205, 0.0764, 0.18, 0.69, 0.2500),
}
"""n -> spectral gap of ring, grid, torus, Erdős–Rényi with 2 ln n / n, half-random (means of 20 draws), static exponential."""


def gap(part, n):
    return 1.0 - residual(matrix(part, n, 0))


@pytest.mark.parametrize("n", GAPS)
def test_the_gaps_of_deterministic_graphs_are_those_of_the_table(n):
    ring, grid, torus, _, _, exponential = GAPS[n]
    assert gap(Ring(), n) == pytest.approx(ring, abs=6e-5)
    assert gap(Ring(), n) == pytest.approx(2 / 3 * (1 - math.cos(2 * math.pi / n)), abs=1e-12)
    assert gap(Grid(), n) == pytest.approx(grid, abs=6e-5)
    assert gap(Torus(), n) == pytest.approx(torus, abs=6e-5)
    assert gap(StaticExponential(), n) == pytest.approx(exponential, abs=6e-4)
    assert gap(Complete(), n) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "column"), [("erdos_renyi", 3), ("half_random", 4)])
@pytest.mark.parametrize("n", GAPS)
def test_the_gaps_of_random_graphs_are_those_of_the_table(kind, column, n):
    """The table is a mean of 20 draws: within four of its standard errors, and the digits printed."""
    gaps = [gap(overlay(kind, 1, seed), n) for seed in range(60)]
    assert np.mean(gaps) == pytest.approx(GAPS[n][column], abs=4 * np.std(gaps) / math.sqrt(20) + 0.005)


def test_the_static_exponential_gap_is_two_by_tau_plus_one_exactly_for_even_n_and_larger_for_odd_n_up_to_256():
    """Ying et al. 2021, theorem 1, at every n: the matrix is circulant, so its eigenvalues are a Fourier transform."""
    for n in range(2, 257):
        tau = (n - 1).bit_length()
        rho = left(StaticExponential().shifts(n, 0), n)
        bound = (tau - 1) / (tau + 1)
        assert rho == pytest.approx(bound, abs=1e-12) if n % 2 == 0 else rho < bound - 1e-6


def test_sides_are_the_divisors_nearest_the_root_and_a_prime_number_degenerates():
    assert [sides(n) for n in (1, 12, 33, 36, 100)] == [(1, 1), (3, 4), (3, 11), (6, 6), (10, 10)]
    for n in (2, 7, 31, 101):
        assert sides(n) == (1, n)
        assert gap(Torus(), n) == pytest.approx(gap(Ring(), n), abs=1e-12)
    path = matrix(Grid(), 7, 0) > 0
    assert (path == (abs(np.subtract.outer(np.arange(7), np.arange(7))) <= 1)).all()


@given(n=st.integers(1, 60), rank=st.integers(0, 59))
def test_on_a_grid_neighbors_are_one_step_apart_and_a_torus_wraps(n, rank):
    r, c = sides(n)
    i, j = divmod(rank % n, c)
    for part, wraps in ((Grid(), False), (Torus(), True)):
        row = part.row(rank % n, n, 0)
        for other in row:
            down, right = abs(other // c - i), abs(other % c - j)
            if wraps:
                down, right = min(down, r - down), min(right, c - right)
            assert down + right == 1
        expected = min(2, r - 1) + min(2, c - 1)
        assert len(row) == expected if wraps else len(row) <= expected


WEIGHED = [Grid, lambda weights: ErdosRenyi(3, weights=weights), lambda weights: HalfRandom(3, weights)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("make", WEIGHED)
def test_rows_equal_those_of_the_whole_matrix(make, rule):
    dense = {"metropolis_hastings": metropolis_hastings, "max_degree": max_degree, "uniform": uniform}[rule]
    for n in (1, 2, 3, 12, 30):
        W = matrix(make(weights=rule), n, 0)
        assert np.allclose(W, dense(W > 0), atol=1e-15)
        assert np.allclose(W.sum(axis=1), 1.0)
        assert make(weights=rule).symmetric == (rule != "uniform")


@pytest.mark.parametrize("part", [Ring(), Grid(), ErdosRenyi(1), OnePeerExponential()])
def test_the_lazy_form_has_no_negative_eigenvalue_and_moves_everybody_half_as_far(part):
    for n in (2, 9, 12):
        W = matrix(Lazy(part), n, 0)
        assert np.allclose(W, lazy(matrix(part, n, 0)), atol=1e-15)
        assert Lazy(part).symmetric == part.symmetric
        assert Lazy(part).period(n) == part.period(n)
        if part.symmetric:
            assert np.linalg.eigvalsh(W)[0] >= -1e-12


@examples(30)
@given(seed=st.integers(0, 2**63 - 1), n=st.integers(2, 40), factor=st.floats(0.05, 3.0))
def test_a_random_graph_is_connected_symmetric_and_equal_on_all_nodes(seed, n, factor):
    W = matrix(ErdosRenyi(seed, factor), n, 0)
    random_graph.connected_graph.cache_clear()
    assert (matrix(ErdosRenyi(seed, factor), n, 7) == W).all()
    assert (W == W.T).all()
    assert residual(W) < 1.0 - 1e-9


def test_random_graphs_have_the_degrees_of_their_probability():
    n = 400
    degrees = (matrix(ErdosRenyi(5, 2.0), n, 0) > 0).sum(axis=1) - 1
    p = 3 * math.log(n) / n
    assert degrees.mean() == pytest.approx(p * (n - 1), abs=4 * math.sqrt(2 * p))
    degrees = (matrix(HalfRandom(5), n, 0) > 0).sum(axis=1) - 1
    assert degrees.mean() == pytest.approx((n - 1) / 2, abs=4 * math.sqrt(2 / 4))


@pytest.mark.parametrize("share", [1 << 22, 1 << 28, 1 << 30, 1 << 31, 3 << 30, 1 << 32])
def test_skipping_by_geometric_gaps_hits_each_trial_with_its_probability(share):
    p = share / 2**32
    trials = 200_000
    hits = random_graph.successes(7, trials, share)
    assert len(hits) == pytest.approx(p * trials, abs=4 * math.sqrt(trials * p * (1 - p)) + 1e-9)
    assert (np.diff(hits) > 0).all()
    neighbors = int((np.diff(hits) == 1).sum())
    assert neighbors == pytest.approx(p * p * trials, abs=8 * math.sqrt(trials) * p * math.sqrt(1 - p * p) + 1)


def test_random_graphs_are_golden():
    assert [sorted(ErdosRenyi(42).row(rank, 9, 0)) for rank in range(3)] == [[1, 2, 3, 6, 7], [0, 2, 4, 5, 6, 7, 8], [0, 1, 3]]


AFFORDABLE = sorted(set(OVERLAYS) - {"complete", "half_random"})


@pytest.mark.slow
@pytest.mark.parametrize("kind", AFFORDABLE)
def test_a_row_among_ten_thousand_members_costs_fifty_microseconds(kind):
    n = 8192 if kind in {"hypercube", "hyper_hypercube"} else 10_000
    part = overlay(kind, 2, 3)
    before = time.process_time()
    for rank in range(n):
        assert len(part.row(rank, n, 5)) <= 60
    assert (time.process_time() - before) / n <= 50e-6
