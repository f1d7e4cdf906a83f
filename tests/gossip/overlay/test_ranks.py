"""Ranks by a salted hash, the digest of a member list, and why an exchange needs equal lists."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.overlay.base_k import BaseK
from starling.gossip.overlay.ranks import digest, ranked
from starling.gossip.overlay.static import StaticExponential

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


def test_the_digest_and_the_order_never_change_between_versions():
    assert digest(["a", "b"]).hex() == "35364c858d7b5928d7d52325e224f9a6"
    assert "".join(ranked("abcdefgh", b"salt")) == "gaehcdfb"


VIEWS = {
    16: {0.0: (1.00, 1.00), 0.02: (1.24, 0.67), 0.05: (1.40, 0.42), 0.1: (1.52, 0.28), 0.2: (1.61, 0.14)},
    33: {0.0: (1.00, 1.00), 0.02: (1.46, 0.43), 0.05: (1.53, 0.27), 0.1: (1.64, 0.20), 0.2: (1.75, 0.14)},
    64: {0.0: (1.00, 1.00), 0.02: (1.48, 0.39), 0.05: (1.66, 0.25), 0.1: (1.74, 0.19), 0.2: (1.87, 0.11)},
    128: {0.0: (1.00, 1.00), 0.02: (1.59, 0.33), 0.05: (1.74, 0.22), 0.1: (1.78, 0.15), 0.2: (1.96, 0.10)},
}
"""n -> share of members that a view leaves out -> n times the largest stationary weight of pulling, share of proposals of
base-2 that are returned. Means of 20 draws."""


def stationary(W):
    """(n,) left eigenvector of eigenvalue 1: what each node counts for where models are pulled."""
    weights = np.full(len(W), 1.0 / len(W))
    for _ in range(200):
        weights = weights @ W
    return weights


@pytest.mark.slow
@pytest.mark.parametrize(("n", "left_out"), [(n, q) for n, row in VIEWS.items() for q in row])
def test_one_missing_member_shifts_every_later_rank_so_schedules_need_an_agreed_list(n, left_out):
    """Views that differ by 2 % break most matchings: why an exchange is refused unless the member lists are equal."""
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
    # means of equally many draws agree within four standard errors of their difference, and the digits printed
    error = 4.0 * math.sqrt(2.0) * np.std(measured, axis=0) / math.sqrt(len(measured))
    assert (np.abs(np.mean(measured, axis=0) - VIEWS[n][left_out]) <= error + 0.005).all(), np.mean(measured, axis=0)
