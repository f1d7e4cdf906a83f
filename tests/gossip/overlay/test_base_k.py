"""The base-(k+1) overlay: exact for every n when started at round 0, with at most k peers per round."""

import math

import numpy as np
import pytest

from starling.gossip.overlay import measure
from starling.gossip.overlay.base_k import BaseK, HyperHypercube, SimpleBaseK


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((*range(1, 65), 100, 127, 255), id="every day", marks=pytest.mark.slow),
        pytest.param(range(2, 257), id="all", marks=[pytest.mark.acceptance, pytest.mark.timeout(900)]),
    ],
)
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", [BaseK, SimpleBaseK])
def test_every_size_is_exact_within_degree_k_and_the_bound_on_the_length(kind, k, sizes):
    """Takezawa et al. 2023: a product of at most 2 log_{k+1}(n) + 2 sparse symmetric matrices is J."""
    for n in sizes:
        part = kind(k)
        P = np.eye(n)
        for each in measure.sequence(part, n, part.period(n)):
            W = each.dense()
            assert (W == W.T).all(), n
            assert W.min() >= 0.0, n
            assert np.bincount(each.to, minlength=n).max() <= k, n
            P = W @ P
        assert np.abs(P - 1 / n).max() < 1e-14, n
        assert part.period(n) <= 2 * math.log(n, k + 1) + 2 + 1e-9, n


# n -> rounds of the simple schedule and of the shorter one, for k = 1, 2, 3, 4
LENGTHS = {
    3: ((3, 3), (1, 1), (1, 1), (1, 1)),
    5: ((5, 5), (3, 3), (3, 3), (1, 1)),
    6: ((5, 4), (2, 2), (2, 2), (2, 2)),
    7: ((5, 5), (4, 4), (3, 3), (3, 3)),
    8: ((3, 3), (3, 3), (2, 2), (2, 2)),
    10: ((7, 6), (5, 4), (4, 4), (2, 2)),
    12: ((7, 5), (3, 3), (2, 2), (2, 2)),
    15: ((7, 7), (5, 4), (4, 4), (2, 2)),
    16: ((4, 4), (4, 4), (2, 2), (2, 2)),
    20: ((9, 7), (6, 5), (5, 4), (2, 2)),
    21: ((9, 9), (6, 5), (5, 4), (4, 4)),
    22: ((9, 8), (6, 6), (5, 5), (4, 4)),
    23: ((9, 9), (6, 6), (5, 5), (4, 4)),
    24: ((9, 6), (4, 4), (3, 3), (3, 3)),
    25: ((9, 9), (6, 6), (5, 5), (2, 2)),
    31: ((9, 9), (7, 7), (5, 5), (5, 5)),
    32: ((5, 5), (5, 5), (3, 3), (3, 3)),
    33: ((11, 11), (7, 6), (6, 5), (5, 5)),
    48: ((11, 7), (5, 5), (3, 3), (3, 3)),
    63: ((11, 11), (8, 6), (6, 5), (6, 5)),
    64: ((6, 6), (6, 6), (3, 3), (3, 3)),
    100: ((13, 11), (9, 8), (7, 6), (3, 3)),
    127: ((13, 13), (9, 9), (7, 7), (7, 7)),
    128: ((7, 7), (7, 7), (4, 4), (4, 4)),
    255: ((15, 15), (11, 10), (8, 8), (8, 6)),
}


@pytest.mark.parametrize("n", LENGTHS)
def test_both_schedules_have_the_published_lengths(n):
    assert tuple((SimpleBaseK(k).period(n), BaseK(k).period(n)) for k in (1, 2, 3, 4)) == LENGTHS[n]


def test_sizes_up_to_64_need_at_most_the_table_s_rounds():
    assert [max(BaseK(k).period(n) for n in range(1, 65)) for k in (1, 2, 3, 4)] == [11, 8, 6, 6]


@pytest.mark.parametrize(("n", "k"), [(1, 1), (16, 1), (24, 2), (30, 4), (36, 3), (216, 7)])
def test_the_hyper_hypercube_is_exact_from_any_round_with_at_most_k_peers(n, k):
    """Its rounds average over one digit each, in any order; base-(k+1) gives this up to work for other n."""
    part = HyperHypercube(k)
    assert max(measure.phases(part, n, part.period(n))) < 1e-12
    assert measure.degree(part, n, 1).largest <= k
    if k == 1:
        assert part.period(n) == BaseK(1).period(n)


def test_the_hyper_hypercube_names_the_largest_prime_factor_it_can_take():
    for ask in (lambda: HyperHypercube(2).row(0, 33, 0), lambda: HyperHypercube(2).period(33)):
        with pytest.raises(ValueError, match=r"at most k \+ 1 = 3, got 33 .*2305.11420.*base_k takes any number"):
            ask()


def test_a_period_started_in_the_middle_mixes_almost_nothing():
    left = measure.phases(BaseK(1), 33, 11)
    assert left == pytest.approx([0, 0.17, 0.30, 0.46, 0.67, 0.97, 0.97, 0.67, 0.46, 0.30, 0.17], abs=6e-3)
    assert measure.phases(BaseK(1), 6, 4) == pytest.approx([0, 0.577, 0.577, 0], abs=5e-4)
    assert measure.phases(BaseK(1), 24, 6) == pytest.approx([0, 0.577, 0.577, 0, 0, 0], abs=5e-4)


def test_schedules_repeat_so_nodes_with_equal_n_are_in_phase():
    part = BaseK(2)
    for rank in range(33):
        assert part.row(rank, 33, 4) == part.row(rank, 33, 4 + 7 * part.period(33))
