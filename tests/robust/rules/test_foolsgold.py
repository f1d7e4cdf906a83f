"""FoolsGold as a rule: histories per peer, and the weights of clones."""

import pytest
import torch

from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.robust.catalogue import rule
from starling.robust.rules.foolsgold import MAX_HISTORIES
from starling.robust.sketches import BUCKETS

D, K = 60, 6
CLONES = (4, 5)
HERE = torch.ones(K, dtype=torch.bool)
EXCLUDED = [peer in CLONES for peer in range(K)]
OF = rule("foolsgold")


def steps(turn, dim=D):
    """Return (k, d) updates of a round: each in its own direction with some noise, clones alike."""
    own = torch.randn(K, dim, generator=generator(0, "direction"))
    moved = own + 0.3 * torch.randn(K, dim, generator=generator(turn, "noise"))
    moved[CLONES[1]] = moved[CLONES[0]]
    return moved


def play(rounds=5, dim=D, slots=None, present=HERE, received=steps):
    """Return the result of the last round, the state, and the excluded peers; the own vector is 0, `present` may depend on the round."""
    own = torch.zeros(dim)
    state, combined, excluded = OF.start(own), own, None
    for turn in range(rounds):
        here = present(turn) if callable(present) else present
        combined, state, excluded = OF.combine(state, own, received(turn, dim), here, own, None, slots)
    return combined, state, excluded


@pytest.mark.parametrize("dim", [D, 3 * BUCKETS])
def test_clones_lose_their_weight_and_the_others_are_averaged_with_the_own_vector(dim):
    combined, state, excluded = play(dim=dim)
    assert excluded.tolist() == EXCLUDED
    torch.testing.assert_close(combined, steps(4, dim)[:4].sum(0) / 5, rtol=0.05, atol=0.05)
    assert state.numel() == MAX_HISTORIES * min(dim, BUCKETS)


def test_a_single_clone_is_detected_by_the_others_history():
    def present(turn):
        return torch.arange(K) != CLONES[turn % 2]  # in the last round the second is absent

    slots = torch.arange(K)
    assert play(6, slots=slots, present=present)[2].tolist() == [False] * 4 + [True, False]
    own = torch.zeros(D)
    assert not OF.combine(OF.start(own), own, steps(5), present(5), own, None, slots)[2].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [D, 3 * BUCKETS])
def test_where_all_peers_are_exact_clones_the_own_vector_stays(dim, dtype):
    own = torch.zeros(dim, dtype=dtype)
    for draw in range(100 if dim == D else 5):
        clone = torch.randn(dim, generator=generator(draw, "clones"), dtype=dtype)
        combined, _, excluded = OF.combine(OF.start(own), own, clone.expand(K, -1), HERE, own, None)
        assert torch.equal(combined, own)
        assert excluded.tolist() == [True] * K


def test_histories_are_stored_by_slot():
    mixed = torch.tensor([9, 3, 63, 0, 7, 20])
    for one, other in zip(play()[0::2], play(slots=mixed)[0::2], strict=True):
        torch.testing.assert_close(one, other)
    _, state, _ = play(slots=mixed)
    assert state.view(MAX_HISTORIES, D).any(dim=1).nonzero().flatten().tolist() == sorted(mixed.tolist())


def test_a_peer_without_a_slot_has_weight_0_and_an_absent_one_counts_as_the_own_vector():
    present = HERE.clone()
    present[list(CLONES)] = False
    combined, _, _ = play(slots=torch.tensor([0, 1, 2, -1, 4, 5]), present=present)
    torch.testing.assert_close(combined, steps(4)[:3].sum(0) / 6, rtol=0.05, atol=0.05)


def test_a_huge_update_affects_only_its_own_history():
    def received(turn, dim):
        return torch.cat([torch.full((1, dim), 3e38), steps(turn, dim)[1:]])

    combined, state, excluded = play(1, received=received)
    assert torch.isfinite(state).all()
    assert torch.isfinite(combined).all()
    assert excluded.tolist() == EXCLUDED


def test_a_history_persists_through_a_few_rounds_of_other_behaviour():
    def received(turn, dim):
        vectors = steps(turn, dim)
        if turn >= 10:
            vectors[CLONES[1]] = 0.5 * torch.randn(dim, generator=generator(turn, "own"))
        return vectors

    assert play(14, received=received)[2].tolist() == EXCLUDED


def test_pre_aggregation_is_refused():
    with pytest.raises(ConfigError, match="before: must be empty"):
        rule("foolsgold", None, "nnm", {"f": 1})
