"""Ranks by a salted hash, the digest of a member list, and why both ends of an exchange need equal lists."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.overlay.base_k import BaseK
from starling.gossip.overlay.measure import matrix, residual
from starling.gossip.overlay.ranks import digest, ranked
from starling.gossip.overlay.static import StaticExponential
from tests.harness.dense_weights import metropolis_hastings, uniform

members = st.lists(st.text("abcd", min_size=1, max_size=4), unique=True, max_size=12)


@given(members=members, data=st.data())
def test_ranks_and_digest_do_not_depend_on_the_order_in_which_members_were_met(members, data):
    shuffled = data.draw(st.permutations(members))
    assert ranked(shuffled, b"salt") == ranked(members, b"salt")
    assert digest(shuffled) == digest(members)
    assert sorted(ranked(members, b"salt")) == sorted(members)


@given(members=members, gone=st.integers(0, 11))
def test_a_missing_member_does_not_reorder_the_others_but_changes_the_digest(members, gone):
    rest = [peer for i, peer in enumerate(members) if i != gone]
    assert ranked(rest, b"salt") == tuple(peer for peer in ranked(members, b"salt") if peer in rest)
    assert (digest(rest) == digest(members)) == (len(rest) == len(members))


def test_the_digest_and_the_order_are_golden():
    assert digest(["a", "b"]).hex() == "35364c858d7b5928d7d52325e224f9a6"
    assert "".join(ranked("abcdefgh", b"salt")) == "gaehcdfb"


FINGERS = {64: (6.3, 8.6, 19.9, 0.227, 0.379, 3.07, 0.07), 256: (8.3, 11.0, 36.1, 0.191, 0.314, 4.23, 0.02)}
"""n -> mean and largest out-degree, largest in-degree, gap of Metropolis–Hastings weights on the undirected union, gap of
pulling with uniform weights, n times the largest and the smallest stationary weight. Means of 30 draws of ids."""
PRINTED = (0.05, 0.5, 0.05, 0.0005, 0.0005, 0.005, 0.005)
EXACT_RANKS = {64: 0.333, 256: 0.250}
VIEWS = {
    16: {0.0: (1.00, 1.00), 0.02: (1.24, 0.67), 0.05: (1.40, 0.42), 0.1: (1.52, 0.28), 0.2: (1.61, 0.14)},
    33: {0.0: (1.00, 1.00), 0.02: (1.46, 0.43), 0.05: (1.53, 0.27), 0.1: (1.64, 0.20), 0.2: (1.75, 0.14)},
    64: {0.0: (1.00, 1.00), 0.02: (1.48, 0.39), 0.05: (1.66, 0.25), 0.1: (1.74, 0.19), 0.2: (1.87, 0.11)},
    128: {0.0: (1.00, 1.00), 0.02: (1.59, 0.33), 0.05: (1.74, 0.22), 0.1: (1.78, 0.15), 0.2: (1.96, 0.10)},
}
"""n -> share of members that a view leaves out -> n times the largest stationary weight of pulling, share of proposals of
base-2 that are returned. Means of 20 draws."""


def fingers(ids):
    """Return (n, n): [i, j] is set if the Chord finger successor(id_i + 2^-l) is j for some l, or j comes right after i."""
    n = len(ids)
    places = np.sort(ids)
    edges = np.zeros((n, n), dtype=bool)
    for power in range(1, math.ceil(math.log2(n)) + 6):
        edges[np.arange(n), np.searchsorted(places, (places + 2.0**-power) % 1.0) % n] = True
    edges[np.arange(n), np.arange(1, n + 1) % n] = True
    np.fill_diagonal(edges, val=False)
    return edges


def stationary(W):
    """Return (n,) the left eigenvector of eigenvalue 1: each node's weight where models are pulled."""
    weights = np.full(len(W), 1.0 / len(W))
    for _ in range(200):
        weights = weights @ W
    return weights


def agree(measured, table, printed):
    """Assert that means of equally many draws agree within four standard errors of their difference, and the printed digits."""
    error = 4.0 * math.sqrt(2.0) * np.std(measured, axis=0) / math.sqrt(len(measured))
    return np.abs(np.mean(measured, axis=0) - table) <= error + np.array(printed)


@pytest.mark.slow
@pytest.mark.parametrize("n", FINGERS)
def test_ranks_from_raw_hashes_mix_well_but_weigh_some_pulled_nodes_fourfold(n):
    """Gaps between hashes are uneven, and so are degrees; uniform weights then silently give another mean."""
    measured = []
    for draw in range(30):
        edges = fingers(np.random.default_rng(draw).random(n))
        pull = uniform(edges)
        second = np.sort(np.abs(np.linalg.eigvals(pull)))[-2]
        count = n * stationary(pull)
        out = edges.sum(axis=1)
        into = edges.sum(axis=0).max()
        gap = 1.0 - residual(metropolis_hastings(edges | edges.T))
        measured.append((out.mean(), out.max(), into, gap, 1.0 - second, count.max(), count.min()))
    assert agree(measured, FINGERS[n], PRINTED).all(), np.mean(measured, axis=0)
    edges = matrix(StaticExponential(), n, 0) > 0
    exact = 1.0 - residual(metropolis_hastings(edges | edges.T))
    assert exact == pytest.approx(EXACT_RANKS[n], abs=6e-4)
    assert 0.39 <= np.mean(measured, axis=0)[3] / exact <= 0.80


@pytest.mark.slow
@pytest.mark.parametrize(("n", "left_out"), [(n, q) for n, row in VIEWS.items() for q in row])
def test_one_missing_member_shifts_every_later_rank_so_schedules_need_an_agreed_list(n, left_out):
    """Views that differ by 2 % break most matchings, so an exchange is refused unless the member lists are equal."""
    measured = []
    for draw in range(20):
        rng = np.random.default_rng(draw)
        pull = np.zeros((n, n))
        asked = {}
        for node in range(n):
            known = [other for other in range(n) if other == node or rng.random() >= left_out]
            rank, m = known.index(node), len(known)
            for other, weight in StaticExponential().row(rank, m, 0).items():
                pull[node, known[other]] = weight
            for other in BaseK(1).row(rank, m, draw % BaseK(1).period(m)):
                asked[node] = known[other]
        pull[np.diag_indices(n)] = 1.0 - pull.sum(axis=1)
        returned = np.mean([asked.get(other) == node for node, other in asked.items()])
        measured.append((n * stationary(pull).max(), returned))
    assert agree(measured, VIEWS[n][left_out], (0.005, 0.005)).all(), np.mean(measured, axis=0)
