"""FoolsGold as a rule: what it remembers of whom, and what that does to clones."""

import pytest
import torch

from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.robust.catalogue import rule
from starling.robust.sketches.histories import BUCKETS, MOST

D, K = 60, 6
CLONES = (4, 5)
HERE = torch.ones(K, dtype=torch.bool)


def steps(turn, dim=D):
    """(k, d) how peers moved in a round: each in a direction of its own and some noise, clones alike."""
    own = torch.randn(K, dim, generator=generator(0, "direction"))
    moved = own + 0.3 * torch.randn(K, dim, generator=generator(turn, "noise"))
    moved[CLONES[1]] = moved[CLONES[0]]
    return moved


def play(of, rounds=5, dim=D, seats=None, present=HERE):
    """What is left of a round after some like it -> the result, what is remembered, who was held back; our own vector is 0."""
    own = torch.zeros(dim)
    kept, combined, held = of.start(own), own, None
    for turn in range(rounds):
        combined, kept, held = of.combine(kept, own, steps(turn, dim), present, own, None, seats)
    return combined, kept, held


@pytest.mark.parametrize("dim", [D, 3 * BUCKETS])
def test_clones_lose_their_weight_and_the_others_are_averaged_with_ourselves(dim):
    """Longer vectors are remembered as sketches; that changes nothing here."""
    combined, kept, held = play(rule("foolsgold"), dim=dim)
    assert held.tolist() == [peer in CLONES for peer in range(K)]
    torch.testing.assert_close(combined, steps(4, dim)[:4].sum(0) / 5, rtol=0.05, atol=0.05)
    assert kept.numel() == MOST * min(dim, BUCKETS)


def test_a_clone_met_alone_is_known_by_what_the_other_told_in_earlier_rounds():
    """That is what memory is for: in a small sample clones seldom meet."""
    of, own = rule("foolsgold"), torch.zeros(D)
    kept, held = of.start(own), None
    for turn in range(6):
        present = HERE.clone()
        present[CLONES[turn % 2]] = False  # in the last round the second
        _, kept, held = of.combine(kept, own, steps(turn), present, own, None, torch.arange(K))
    assert held.tolist() == [False] * 4 + [True, False]
    fresh = of.combine(of.start(own), own, steps(5), present, own, None, torch.arange(K))
    assert not fresh[2].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [D, 3 * BUCKETS])
def test_where_all_peers_are_exact_clones_the_own_vector_stays(dim, dtype):
    """None of them has any weight, in whatever direction they move, and all are reported."""
    of, own = rule("foolsgold"), torch.zeros(dim, dtype=dtype)
    for draw in range(100 if dim == D else 5):
        clone = torch.randn(dim, generator=generator(draw, "clones"), dtype=dtype)
        combined, _, held = of.combine(of.start(own), own, clone.expand(K, -1), HERE, own, None)
        assert torch.equal(combined, own)
        assert held.tolist() == [True] * K


def test_seats_say_whose_past_is_whose():
    """The same round by round, but peers sit elsewhere; and a seat that was emptied knows nothing of who sat there."""
    mixed = torch.tensor([9, 3, 63, 0, 7, 20])
    for one, other in zip(play(rule("foolsgold"))[0::2], play(rule("foolsgold"), seats=mixed)[0::2], strict=True):
        torch.testing.assert_close(one, other)
    _, kept, _ = play(rule("foolsgold"), seats=mixed)
    assert kept.view(MOST, D).any(dim=1).nonzero().flatten().tolist() == sorted(mixed.tolist())


def test_who_stands_has_no_weight_and_who_is_absent_is_our_own_vector_with_a_weight():
    present = HERE.clone()
    present[list(CLONES)] = False
    seats = torch.tensor([0, 1, 2, -1, 4, 5])
    combined, _, _ = play(rule("foolsgold"), seats=seats, present=present)
    torch.testing.assert_close(combined, steps(4)[:3].sum(0) / 6, rtol=0.05, atol=0.05)


def test_one_who_moves_in_huge_steps_ruins_no_history_but_its_own():
    of, own = rule("foolsgold"), torch.zeros(D)
    told = steps(0)
    told[0] = 3e38
    combined, kept, held = of.combine(of.start(own), own, told, HERE, own, None)
    assert torch.isfinite(kept).all()
    assert torch.isfinite(combined).all()
    assert held.tolist() == [False, False, False, False, True, True]


def test_a_past_is_not_forgotten_by_behaving_otherwise_for_a_while():
    """Alike for ten rounds, and then no more: the sums remember it. It is what a sleeper lives on, too, who was honest for long."""
    of, own = rule("foolsgold"), torch.zeros(D)
    kept, held = of.start(own), None
    for turn in range(14):
        told = steps(turn)
        if turn >= 10:
            told[CLONES[1]] = 0.5 * torch.randn(D, generator=generator(turn, "own"))
        _, kept, held = of.combine(kept, own, told, HERE, own, None)
    assert held.tolist() == [peer in CLONES for peer in range(K)]


def test_nothing_that_mixes_peers_may_come_before_it():
    with pytest.raises(ConfigError, match="before: must be empty"):
        rule("foolsgold", None, "nnm", {"b": 1})
