"""Pulling: the peers of a node are uniform, distinct, new in every round, and cannot be chosen."""

import numpy as np

from starling.gossip.overlay.measure import matrix
from starling.gossip.overlay.pull import Pull
from starling.gossip.overlay.ranks import ranked, ranked_at, salt_of

PEERS = tuple(f"peer{i:02}" for i in range(16))


def test_every_node_pulls_k_distinct_others_with_equal_weights():
    for n, k in ((16, 6), (7, 6), (100, 12)):
        for rank in range(n):
            row = Pull(5, k).row(rank, n, 3)
            assert len(row) == k
            assert rank not in row
            assert set(row.values()) == {1.0 / (k + 1)}


def test_with_fewer_than_k_other_members_all_are_pulled():
    assert Pull(5, 6).row(1, 4, 0) == {0: 0.25, 2: 0.25, 3: 0.25}
    assert Pull(5, 6).row(0, 1, 0) == {}


def test_each_set_of_peers_is_as_likely_as_any_other():
    counts = {}
    for r in range(3000):
        chosen = tuple(sorted(Pull(1, 2).row(0, 5, r)))
        counts[chosen] = counts.get(chosen, 0) + 1
    assert len(counts) == 6
    expected = 3000 / 6
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 20.5  # chi squared, 5 degrees, 0.1 %


def test_rounds_and_ranks_draw_independently():
    one = [frozenset(Pull(1, 3).row(0, 16, r)) for r in range(40)]
    assert len(set(one)) > 35
    shifted = [frozenset((other - 1) % 16 for other in Pull(1, 3).row(1, 16, r)) for r in range(40)]
    assert sum(a == b for a, b in zip(one, shifted, strict=True)) <= 2


def test_pulling_preserves_the_average_only_in_expectation():
    """Rows sum to 1, columns to 1 only on average, so this overlay has no pairwise exchanges."""
    W = matrix(Pull(0, 6), 16, 0)
    assert np.allclose(W.sum(axis=1), 1.0)
    assert np.abs(W.sum(axis=0) - 1.0).max() > 0.1
    mean = sum(matrix(Pull(0, 6), 16, r) for r in range(500)) / 500
    assert np.abs(mean.sum(axis=0) - 1.0).max() < 0.06


def test_the_draw_is_golden():
    assert list(Pull(42, 3).row(0, 16, 0)) == [4, 9, 15]


def test_members_are_ranked_anew_every_so_many_rounds_and_stay_between():
    orders = [ranked_at(PEERS, b"salt", r, 4) for r in range(12)]
    assert orders[0] == orders[3] == ranked(PEERS, b"salt")
    assert orders[4] == orders[7] == ranked(PEERS, salt_of(b"salt", 1))
    assert len({orders[0], orders[4], orders[8]}) == 3
    assert {ranked_at(PEERS, b"salt", r, 0) for r in (0, 5, 1000)} == {ranked(PEERS, b"salt")}


def test_neighbors_of_one_epoch_are_unlikely_neighbors_in_the_next():
    together = 0
    for epoch in range(600):
        order = ranked_at(PEERS, b"salt", epoch * 4, 4)
        together += abs(order.index("peer00") - order.index("peer01")) == 1
    assert 600 * 2 / 16 * 0.7 < together < 600 * 2 / 16 * 1.3
