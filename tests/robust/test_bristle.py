"""Bristle: each of its formulas, how far a liar gets, and that heads are learned together although data are not shared."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.rng import generator
from starling.node.tasks.synthetic import CLASSES, drawn
from starling.robust import bristle
from tests.strategies import examples, seeds

ALL = torch.ones(3, dtype=torch.bool)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def heads(count, classes, size, *labels):
    return torch.randn(count, classes, size, generator=generator(0, "heads", *labels))


# --- who is tried ----------------------------------------------------------------------------------------------------


def test_four_near_five_middle_and_two_far_ones_are_tried():
    """(1 − α)²q, 2α(1 − α)q and α²q for α = 0.4 and q = 10, rounded."""
    assert bristle.quotas() == (4, 5, 2)
    assert bristle.quotas(0.0, 10) == (10, 0, 0)
    assert bristle.quotas(1.0, 10) == (0, 0, 10)


@pytest.mark.parametrize(("alpha", "q"), [(-0.1, 10), (1.1, 10), (0.4, 0), (math.nan, 10)])
def test_quotas_that_cannot_be_are_refused(alpha, q):
    with pytest.raises(ValueError, match="must be"):
        bristle.quotas(alpha, q)


def test_thirds_are_by_distance():
    own = torch.zeros(1, 2)
    told = torch.arange(1.0, 31.0)[torch.randperm(30, generator=generator(0, "order"))][:, None, None].expand(-1, 1, 2)
    chosen = bristle.prioritised(own, told, generator(1, "try"))
    third = (told[chosen, 0, 0] - 1).div(10, rounding_mode="floor").int().tolist()
    assert [third.count(each) for each in range(3)] == [4, 5, 2]
    assert chosen.tolist() == sorted(set(chosen.tolist()))


@given(count=st.integers(0, 14), seed=seeds)
@examples(30)
def test_of_few_all_are_tried_that_the_quotas_allow(count, seed):
    told = torch.randn(count, 2, 3, generator=generator(seed, "few"))
    chosen = bristle.prioritised(torch.zeros(2, 3), told, generator(seed, "try"))
    sizes = [len(third) for third in torch.arange(count).tensor_split(3)]
    assert len(chosen) == sum(min(size, quota) for size, quota in zip(sizes, (4, 5, 2), strict=True))
    assert set(chosen.tolist()) <= set(range(count))


def test_equal_chance_tries_equal_peers():
    own, told = torch.zeros(2, 3), heads(30, 2, 3)
    assert torch.equal(
        bristle.prioritised(own, told, generator(5, "a")), bristle.prioritised(own, told, generator(5, "a"))
    )
    assert len({tuple(bristle.prioritised(own, told, generator(seed, "a")).tolist()) for seed in range(20)}) > 10


# --- what they are worth -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "theirs", "merit"),
    [
        (0.5, 0.5, 0.0),
        (0.5, 0.7, 2.0**3.5),
        (0.5, 0.3, -(2.0**4.5)),
        (0.0, 1.0, 10.0**3),
        (1.0, 0.0, -(10.0**5)),
        (0.9, 0.85, -(0.5**4.9)),
    ],
)
def test_merit_is_a_power_of_ten_times_the_difference(own, theirs, merit):
    """Gains to the power 3 + F1, losses to 4 + F1, with F1 our own."""
    assert float(bristle.merits(numbers(own), numbers(theirs))) == pytest.approx(merit, rel=1e-9)


@pytest.mark.parametrize(
    ("merit", "share"),
    [(0.0, 1.0), (100.0, 10 / (1 + math.exp(-1)) - 4), (1e9, 6.0), (-100.0, 0.0), (-30.0, 0.255574831883)],
)
def test_emphasis_is_one_for_equals_and_below_six(merit, share):
    assert float(bristle.emphasis(numbers(merit))) == pytest.approx(share, rel=1e-6)


def test_certainty_is_mean_less_deviation_over_the_classes_it_is_judged_by():
    scores = torch.stack((numbers(0.9, 0.7, 0.1), numbers(1.0, 0.0, 0.0), numbers(0.9, 0.7, 0.1)))
    judged = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])
    assert bristle.certainty(scores, judged).tolist() == pytest.approx([0.8 - 0.1, 0.0, 0.0])  # 1/3 − 0.47 is none


def test_a_peer_is_judged_by_its_best_of_our_classes_as_many_as_it_shares():
    scores = numbers(0.1, 0.9, 0.5, 0.95, 0.5).expand(4, -1)
    familiar = torch.tensor([True, True, True, False, True])
    found = bristle.selected(scores, familiar, torch.tensor([0, 2, 4, 99]))
    assert [row.nonzero().flatten().tolist() for row in found] == [[], [1, 2], [0, 1, 2, 4], [0, 1, 2, 4]]


def test_weights_of_familiar_classes_are_their_own_and_of_foreign_ones_the_sum_s():
    familiar = torch.tensor([True, True, False])
    own, theirs = numbers(0.5, 0.6, 0.0), numbers(0.8, 0.5, 0.0)
    sure = 0.65 - 0.15
    better, worse = 3.0**3.5, -(1.0**4.6)
    expected = [sure * float(bristle.emphasis(numbers(merit))) for merit in (better, worse, better + worse)]
    assert bristle.weights(own, theirs[None], familiar, torch.tensor([2]))[0].tolist() == pytest.approx(expected)
    fewer = [0.8 * float(bristle.emphasis(numbers(merit))) for merit in (better, math.nan, better)]
    assert bristle.weights(own, theirs[None], familiar, torch.tensor([1]))[0].tolist() == pytest.approx(
        [fewer[0], 0.0, fewer[2]]
    )


def test_a_loss_counts_in_full_where_trust_is_lent():
    """For its own class it is bounded at −100; for classes we cannot judge one great loss outweighs several gains."""
    familiar = torch.tensor([True, True, False])
    shares = bristle.weights(numbers(0.9, 0.5, 0.0), numbers(0.3, 0.95, 0.0)[None], familiar, torch.tensor([2]))[0]
    assert shares[1] > shares[2] == 0.0


def test_what_was_measured_of_foreign_classes_is_not_looked_at():
    """We have no data of them, so that score is noise."""
    familiar = torch.tensor([True, True, False])
    own, theirs = numbers(0.5, 0.6, 0.0), numbers(0.8, 0.5, 0.0)
    other = bristle.weights(numbers(0.5, 0.6, 0.9), numbers(0.8, 0.5, 1.0)[None], familiar, torch.tensor([2]))
    assert torch.equal(bristle.weights(own, theirs[None], familiar, torch.tensor([2])), other)


scores = seeds.map(lambda seed: torch.rand(7, 5, generator=generator(seed, "scores"), dtype=torch.float64))


@given(
    found=scores,
    held=st.lists(st.booleans(), min_size=5, max_size=5),
    shared=st.lists(st.integers(-1, 6), min_size=6, max_size=6),
)
@examples(50)
def test_nobody_weighs_more_than_six_times_its_certainty(found, held, shared):
    familiar, shared = torch.tensor(held), torch.tensor(shared)
    sure = bristle.certainty(found[1:], bristle.selected(found[1:], familiar, shared))
    shares = bristle.weights(found[0], found[1:], familiar, shared)
    assert bool((shares >= 0).all())
    assert bool((shares <= 6.0 * sure[:, None]).all())
    assert familiar.any() or not shares.any()


def test_who_is_much_worse_has_no_weight_and_who_is_equal_its_certainty():
    own = numbers(0.9, 0.9, 0.9)
    shares = bristle.weights(
        own, torch.stack((numbers(0.9, 0.9, 0.9), numbers(0.4, 0.4, 0.4))), ALL, torch.tensor([3, 3])
    )
    assert shares[0].tolist() == pytest.approx([0.9] * 3)
    assert shares[1].tolist() == [0.0] * 3


# --- what becomes of it ------------------------------------------------------------------------------------------------


def test_columns_are_weighted_means_class_by_class():
    own, told = heads(1, 3, 4, "own")[0], heads(2, 3, 4, "told")
    shares = torch.tensor([[1.0, 0.0, 2.0], [0.5, 0.0, 6.0]])
    mixed = bristle.integrate(own, told, shares)
    for c in range(3):
        parts = own[c] + shares[0, c] * told[0, c] + shares[1, c] * told[1, c]
        assert torch.allclose(mixed[c], parts / (1 + shares[0, c] + shares[1, c]), atol=1e-6)
    assert torch.equal(mixed[1], own[1])


@given(seed=seeds, size=st.sampled_from([1.0, 1e3, 1e6]))
@examples(30)
def test_a_column_moves_at_most_six_sevenths_of_the_way_to_one_liar(seed, size):
    """The bound on what the worst scores can be made to do; without data to judge by, nothing moves."""
    chance = generator(seed, "liar")
    own, told = torch.randn(4, 3, generator=chance), size * torch.randn(1, 4, 3, generator=chance)
    found = torch.rand(2, 4, generator=chance)
    held, shared = torch.tensor([True, True, False, False]), torch.tensor([2])
    mixed = bristle.combine(own, told, held, shared, lambda models: found, chance)
    moved, apart = (mixed - own).norm(dim=1), (told[0] - own).norm(dim=1)
    assert bool((moved <= 6 / 7 * apart * (1 + 1e-5)).all())
    assert torch.equal(bristle.combine(own, told, held & ~held, shared, lambda models: found, chance), own)


def test_classes_we_do_not_hold_are_open_to_who_is_good_at_those_we_do():
    """The attack surface, written down: a perfect copy of our columns carries any column for a class we have no data of."""
    own = heads(1, 3, 4, "own")[0]
    liar = own.clone()
    liar[2] = 100.0
    found = torch.full((2, 3), 1.0)
    held, shared = torch.tensor([True, True, False]), torch.tensor([2])
    mixed = bristle.combine(own, liar[None], held, shared, lambda models: found, generator(0, "x"))
    assert torch.equal(mixed[:2], own[:2])
    assert float(mixed[2].mean()) > 40.0


def test_nobody_told_us_anything():
    own = heads(1, 3, 4, "own")[0]
    nobody = torch.zeros(0, dtype=torch.int64)
    mixed = bristle.combine(
        own, torch.zeros(0, 3, 4), ALL, nobody, lambda heads: torch.ones(len(heads), 3), generator(0, "x")
    )
    assert torch.equal(mixed, own)


def test_only_those_tried_cost_an_evaluation_and_nothing_is_changed():
    own, told, seen = heads(1, 3, 4, "own")[0], heads(40, 3, 4, "told"), []
    before = own.clone(), told.clone()

    def score(models):
        seen.append(len(models))
        return torch.ones(len(models), 3)

    bristle.combine(own, told, ALL, torch.full((40,), 3), score, generator(0, "x"))
    assert seen == [12]  # 4 + 5 + 2, and our own
    assert torch.equal(own, before[0])
    assert torch.equal(told, before[1])


def f1(guessed, true, classes):
    """(…, C) F1 of each class, 2·hits/(guesses + examples); 0 for a class that is neither guessed nor there.

    Args:
        guessed: (…, N) class numbers.
        true: (N,) class numbers.
        classes: C.
    """
    numbers = torch.arange(classes, device=true.device)
    said, there = guessed[..., None] == numbers, true[..., None] == numbers
    hits = (said & there).sum(dim=-2)
    both = said.sum(dim=-2) + there.sum(dim=-2)
    return 2.0 * hits / both.clamp(min=1)


def test_f1_is_the_harmonic_mean_of_precision_and_recall():
    true = torch.tensor([0, 0, 0, 1, 1, 2])
    guessed = torch.tensor([[0, 0, 1, 1, 0, 2], [3, 3, 3, 3, 3, 3]])
    found = f1(guessed, true, 4)
    assert found[0].tolist() == pytest.approx([2 / 3, 1 / 2, 1.0, 0.0])  # 2PR/(P + R): P = R = 2/3, and 1/2 each
    assert found[1].tolist() == [0.0] * 4


# --- learning ----------------------------------------------------------------------------------------------------------

NODES, LIARS, ROUNDS, HELD = 10, 3, 12, 5


def learned(how):
    """Mean accuracy over ten classes of the honest, of whom each has data of five. The frozen layers are the features themselves."""
    train, test = drawn()
    x, y = torch.cat((torch.tensor(train.x), torch.ones(len(train.y), 1)), 1), torch.tensor(train.y)
    test_x, test_y = torch.cat((torch.tensor(test.x), torch.ones(len(test.y), 1)), 1), torch.tensor(test.y)
    familiar = torch.zeros(NODES, CLASSES, dtype=torch.bool)
    for node in range(NODES):
        familiar[node, [(node + step) % CLASSES for step in range(HELD)]] = True
    mine = [torch.nonzero(familiar[node][y] & (torch.arange(len(y)) % NODES == node))[:, 0] for node in range(NODES)]
    models = torch.zeros(NODES, CLASSES, x.shape[1])
    for turn in range(ROUNDS):
        for node, part in enumerate(mine):
            for _ in range(5):  # full batches; foreign classes take no part in the softmax, so that their columns stay
                logits = torch.where(familiar[node], x[part] @ models[node].T, -math.inf)
                error = torch.softmax(logits, 1) - torch.nn.functional.one_hot(y[part], CLASSES)
                models[node] -= 0.5 * error.T @ x[part] / len(part)
        said = models.clone()
        said[:LIARS] = -3.0 * models[LIARS:].mean(0)
        if how == "alone":
            continue
        before = models.clone()
        for node in range(NODES):
            told = said[torch.arange(NODES) != node]
            if how == "mean":
                models[node] = (before[node] + told.sum(0)) / NODES
                continue

            def score(heads, node=node, part=mine[node]):
                seen = torch.where(familiar[node], x[part] @ heads.transpose(-1, -2), -math.inf)
                return f1(seen.argmax(-1), y[part], CLASSES)

            shared = (familiar[torch.arange(NODES) != node] & familiar[node]).sum(1)
            models[node] = bristle.combine(
                before[node], told, familiar[node], shared, score, generator(turn, "try", node)
            )
    guessed = (test_x @ models[LIARS:].transpose(-1, -2)).argmax(-1)
    return float((guessed == test_y).float().mean())


@pytest.mark.slow
def test_heads_are_learned_together_while_three_of_ten_lie():
    """Alone a node knows five of ten classes; a mean follows the liars."""
    alone, together, mean = learned("alone"), learned("bristle"), learned("mean")
    assert alone < 0.5
    assert together > alone + 0.2
    assert mean < together - 0.2
