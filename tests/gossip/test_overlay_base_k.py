"""The base-(k+1) overlay: exact for every n, started at round 0, with at most k peers a round."""

import math
from functools import reduce

import numpy as np
import pytest

from gossip.overlay.base_k import BaseK
from gossip.overlay.weights import matrix, residual


def matrices(n, k):
    part = BaseK(k)
    return [matrix(part, n, r) for r in range(part.period(n))]


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_one_period_is_exact_and_no_node_meets_more_than_k_peers_for_all_n_up_to_64(k):
    """Takezawa et al. 2023: finite-time exact averaging whatever the number of nodes, in O(log n) rounds."""
    for n in range(1, 65):
        Ws = matrices(n, k)
        P = reduce(lambda P, W: W @ P, Ws)
        assert np.abs(P - 1 / n).max() < 1e-12, n
        assert max(int((W > 0).sum(axis=1).max()) for W in Ws) <= k + 1, n
        assert all((W == W.T).all() and W.min() >= 0 for W in Ws), n
        assert len(Ws) <= 2 * math.log(n, k + 1) + 2, n


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k"), [(100, 1), (127, 2), (216, 7), (255, 4)])
def test_larger_and_odder_sizes_are_exact_too(n, k):
    P = reduce(lambda P, W: W @ P, matrices(n, k))
    assert np.abs(P - 1 / n).max() < 1e-12


LENGTHS = {
    3: (3, 1, 1, 1),
    5: (5, 3, 3, 1),
    6: (4, 2, 2, 2),
    8: (3, 3, 2, 2),
    10: (6, 4, 4, 2),
    12: (5, 3, 2, 2),
    15: (7, 4, 4, 2),
    20: (7, 5, 4, 2),
    22: (8, 6, 5, 4),
    24: (6, 4, 3, 3),
    25: (9, 6, 5, 2),
    31: (9, 7, 5, 5),
    33: (11, 6, 5, 5),
    48: (7, 5, 3, 3),
    63: (11, 6, 5, 5),
    64: (6, 6, 3, 3),
    100: (11, 8, 6, 3),
    127: (13, 9, 7, 7),
    128: (7, 7, 4, 4),
    255: (15, 10, 8, 6),
}


@pytest.mark.parametrize("n", LENGTHS)
def test_the_schedule_is_as_short_as_the_published_one(n):
    assert tuple(BaseK(k).period(n) for k in (1, 2, 3, 4)) == LENGTHS[n]


def test_a_period_started_in_the_middle_mixes_almost_nothing():
    """Why rounds are tied to a shared counter: a group half a period out of phase is worse than a slow one."""
    Ws = matrices(33, 1)
    left = [residual(reduce(lambda P, W: W @ P, Ws[start:] + Ws[:start])) for start in range(11)]
    expected = [0, 0.17, 0.30, 0.46, 0.67, 0.97, 0.97, 0.67, 0.46, 0.30, 0.17]
    assert left == pytest.approx(expected, abs=6e-3)


def test_rounds_beyond_the_period_begin_again_so_all_with_equal_n_are_in_phase():
    part = BaseK(2)
    for rank in range(33):
        assert part.row(rank, 33, 4) == part.row(rank, 33, 4 + 7 * part.period(33))


def test_a_row_of_ten_thousand_members_needs_no_table():
    """The daemon asks every round, and n changes with every join: a row is arithmetic on the rank."""
    part = BaseK(1)
    n = 10_007
    for r in range(part.period(n)):
        for rank in (0, 4096, 8191, 8192, n - 1):
            for other, weight in part.row(rank, n, r).items():
                assert part.row(other, n, r)[rank] == weight


def test_k_below_one_is_refused():
    with pytest.raises(ValueError, match="k must be >= 1"):
        BaseK(0)
