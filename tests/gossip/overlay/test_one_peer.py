"""Overlays with one peer per round: when they are exact, and how fast they mix otherwise."""

import math
from functools import reduce

import numpy as np
import pytest

from starling.gossip.overlay.measure import matrix, residual
from starling.gossip.overlay.one_peer import Hypercube, OnePeerExponential, RandomMatching
from starling.gossip.overlay.sticky import Sticky


def product(part, n, count, start=0):
    return reduce(lambda P, r: matrix(part, n, r) @ P, range(start, start + count), np.eye(n))


LEFT = {
    3: 0.2500,
    5: 0.2023,
    6: 0.2165,
    7: 0.1250,
    9: 0.1175,
    10: 0.1924,
    12: 0.2091,
    15: 0.0625,
    17: 0.0614,
    20: 0.1900,
    24: 0.2073,
    25: 0.1921,
    31: 0.0313,
    33: 0.0311,
    48: 0.2069,
    63: 0.0156,
}


@pytest.mark.parametrize("n", LEFT)
def test_one_peer_exponential_has_the_table_s_contraction_per_period(n):
    left = residual(product(OnePeerExponential(), n, OnePeerExponential().period(n)))
    assert left == pytest.approx(LEFT[n], abs=5e-4)
    if n + 1 in {4, 8, 16, 32, 64}:
        assert left == pytest.approx(1 / (n + 1), abs=1e-12)


def test_one_peer_exponential_is_exact_for_powers_of_two_only_and_never_leaves_more_than_a_quarter():
    part = OnePeerExponential()
    for n in range(2, 64):
        for start in (0, 1):
            left = residual(product(part, n, part.period(n), start))
            assert left < 1e-12 if n & (n - 1) == 0 else 1e-3 < left <= 0.25 + 1e-12


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 32, 64])
def test_the_hypercube_is_exact_from_any_round(n):
    part = Hypercube()
    for start in range(3):
        assert residual(product(part, n, part.period(n), start)) < 1e-12


def test_a_random_matching_is_perfect_and_leaves_one_node_idle_if_n_is_odd():
    for n in range(2, 20):
        for r in range(5):
            row = [RandomMatching(7).row(rank, n, r) for rank in range(n)]
            assert sum(not entries for entries in row) == n % 2


def test_random_matchings_are_golden():
    partners = [next(iter(RandomMatching(42).row(rank, 8, 3)), None) for rank in range(8)]
    assert partners == [7, 3, 5, 1, 6, 2, 4, 0]


@pytest.mark.parametrize("seed", [0, 1, 9])
def test_the_sticky_schedule_is_exact_in_every_turn_for_powers_of_two(seed):
    for tau in range(1, 7):
        for turn in range(2):
            assert residual(product(Sticky(seed), 1 << tau, tau, start=turn * tau)) < 1e-12


@pytest.mark.parametrize("n", [3, 6, 7, 12, 24, 33, 48])
def test_the_sticky_schedule_meets_every_exponential_neighbor_and_no_other(n):
    part = Sticky(3)
    tau = math.ceil(math.log2(n))
    for rank in (0, 1, n - 1):
        met = {peer for r in range(part.period(n)) for peer in part.row(rank, n, r)}
        assert met == {(rank + sign * 2**j) % n for j in range(tau) for sign in (1, -1)}


@pytest.mark.parametrize("n", [5, 9, 33])
def test_on_an_odd_cycle_all_nodes_are_idle_equally_often(n):
    part = Sticky(3)
    period = part.period(n)
    idle = [sum(not part.row(rank, n, r) for r in range(period)) for rank in range(n)]
    assert set(idle) == {period // n}


@pytest.mark.parametrize("n", [12, 24, 33, 48])
def test_the_sticky_schedule_mixes_about_as_fast_as_random_matchings(n):
    """A random matching leaves about sqrt(1/2) of a disagreement per round: keeping the same few peers costs little."""
    part = Sticky(3)
    tau = math.ceil(math.log2(n))
    left = residual(product(part, n, 6 * tau)) ** (1 / (6 * tau))
    assert left < 0.80
