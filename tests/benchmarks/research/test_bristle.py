"""Bristle: its formulas, the bound on a Byzantine peer, and joint learning of output layers on different data."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.research import bristle
from starling.gossip.rng import generator
from starling.node.tasks.synthetic import CLASSES, drawn
from tests.strategies import examples, seeds

ALL = torch.ones(3, dtype=torch.bool)
TWO = torch.tensor([True, True, False])


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def layers(count, classes, size, *labels):
    return torch.randn(count, classes, size, generator=generator(0, "heads", *labels))


OWN = layers(1, 3, 4, "own")[0]


@pytest.mark.parametrize(("arguments", "expected"), [((), (4, 5, 2)), ((0.0, 10), (10, 0, 0)), ((1.0, 10), (0, 0, 10))])
def test_quotas_are_those_of_the_formula(arguments, expected):
    """(1 − α)²q, 2α(1 − α)q and α²q, rounded; by default for α = 0.4 and q = 10."""
    assert bristle.quotas(*arguments) == expected


@pytest.mark.parametrize(("alpha", "q"), [(-0.1, 10), (1.1, 10), (0.4, 0), (math.nan, 10)])
def test_parameters_out_of_bounds_are_refused(alpha, q):
    with pytest.raises(ValueError, match="must be"):
        bristle.quotas(alpha, q)


def test_thirds_are_by_distance_and_drawn_by_the_generator():
    received = torch.arange(1.0, 31.0)[torch.randperm(30, generator=generator(0, "order"))][:, None, None]
    received = received.expand(-1, 1, 2)
    draws = [bristle.prioritised(torch.zeros(1, 2), received, generator(seed, "try")) for seed in (1, 1, *range(20))]
    third = (received[draws[0], 0, 0] - 1).div(10, rounding_mode="floor").int().tolist()
    assert [third.count(each) for each in range(3)] == [4, 5, 2]
    assert draws[0].tolist() == sorted(set(draws[0].tolist())) == draws[1].tolist()
    assert len({tuple(chosen.tolist()) for chosen in draws}) > 10


@given(count=st.integers(0, 14), seed=seeds)
@examples(30)
def test_few_models_are_evaluated_up_to_the_quotas(count, seed):
    received = torch.randn(count, 2, 3, generator=generator(seed, "few"))
    chosen = bristle.prioritised(torch.zeros(2, 3), received, generator(seed, "try"))
    sizes = [len(third) for third in torch.arange(count).tensor_split(3)]
    assert len(chosen) == sum(min(size, quota) for size, quota in zip(sizes, (4, 5, 2), strict=True))
    assert set(chosen.tolist()) <= set(range(count))


@pytest.mark.parametrize(
    ("own", "theirs", "merit"),
    [(0.5, 0.5, 0.0), (0.5, 0.7, 2.0**3.5), (0.5, 0.3, -(2.0**4.5)), (0.0, 1.0, 10.0**3), (1.0, 0.0, -(10.0**5)), (0.9, 0.85, -(0.5**4.9))],
)
def test_merit_is_a_power_of_ten_times_the_difference(own, theirs, merit):
    """Gains to the power 3 + F1, losses to 4 + F1, with the own F1."""
    assert float(bristle.merits(numbers(own), numbers(theirs))) == pytest.approx(merit, rel=1e-9)


@pytest.mark.parametrize(
    ("merit", "share"), [(0.0, 1.0), (100.0, 10 / (1 + math.exp(-1)) - 4), (1e9, 6.0), (-100.0, 0.0), (-30.0, 0.255574831883)]
)
def test_emphasis_is_one_for_equals_and_below_six(merit, share):
    assert float(bristle.emphasis(numbers(merit))) == pytest.approx(share, rel=1e-6)


def test_certainty_is_mean_less_deviation_over_the_classes_used():
    scores = torch.stack((numbers(0.9, 0.7, 0.1), numbers(1.0, 0.0, 0.0), numbers(0.9, 0.7, 0.1)))
    judged = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])
    assert bristle.certainty(scores, judged).tolist() == pytest.approx([0.8 - 0.1, 0.0, 0.0])  # 1/3 − 0.47 < 0


def test_a_peer_is_judged_by_its_best_shared_classes():
    scores = numbers(0.1, 0.9, 0.5, 0.95, 0.5).expand(4, -1)
    familiar = torch.tensor([True, True, True, False, True])
    found = bristle.selected(scores, familiar, torch.tensor([0, 2, 4, 99]))
    assert [row.nonzero().flatten().tolist() for row in found] == [[], [1, 2], [0, 1, 2, 4], [0, 1, 2, 4]]


def weights(own, theirs, shared=2):
    return bristle.weights(numbers(*own), numbers(*theirs)[None], TWO, torch.tensor([shared]))[0]


def test_weights_come_from_the_merit_of_a_class_or_from_the_sum_for_unfamiliar_ones():
    better, worse = 3.0**3.5, -(1.0**4.6)
    emphasis = [float(bristle.emphasis(numbers(merit))) for merit in (better, worse, better + worse)]
    found = weights((0.5, 0.6, 0.0), (0.8, 0.5, 0.0))
    assert found.tolist() == pytest.approx([(0.65 - 0.15) * each for each in emphasis])
    fewer = weights((0.5, 0.6, 0.0), (0.8, 0.5, 0.0), shared=1)
    assert fewer.tolist() == pytest.approx([0.8 * emphasis[0], 0.0, 0.8 * emphasis[0]])
    assert torch.equal(weights((0.5, 0.6, 0.9), (0.8, 0.5, 1.0)), found)  # scores of unfamiliar classes are noise
    lost = weights((0.9, 0.5, 0.0), (0.3, 0.95, 0.0))
    assert lost[1] > lost[2] == 0.0  # bounded at −100 for the class itself, unbounded in the sum
    equal_and_worse = torch.stack((numbers(0.9, 0.9, 0.9), numbers(0.4, 0.4, 0.4)))
    shares = bristle.weights(numbers(0.9, 0.9, 0.9), equal_and_worse, ALL, torch.tensor([3, 3]))
    assert shares.flatten().tolist() == pytest.approx([0.9] * 3 + [0.0] * 3)


@given(seed=seeds, held=st.lists(st.booleans(), min_size=5, max_size=5), shared=st.lists(st.integers(-1, 6), min_size=6, max_size=6))
@examples(50)
def test_no_weight_exceeds_six_times_the_certainty(seed, held, shared):
    found = torch.rand(7, 5, generator=generator(seed, "scores"), dtype=torch.float64)
    familiar, shared = torch.tensor(held), torch.tensor(shared)
    sure = bristle.certainty(found[1:], bristle.selected(found[1:], familiar, shared))
    shares = bristle.weights(found[0], found[1:], familiar, shared)
    assert bool((shares >= 0).all())
    assert bool((shares <= 6.0 * sure[:, None]).all())
    assert familiar.any() or not shares.any()


def test_columns_are_weighted_means_class_by_class():
    received = layers(2, 3, 4, "told")
    shares = torch.tensor([[1.0, 0.0, 2.0], [0.5, 0.0, 6.0]])
    mixed = bristle.integrate(OWN, received, shares)
    for c in range(3):
        parts = OWN[c] + shares[0, c] * received[0, c] + shares[1, c] * received[1, c]
        assert torch.allclose(mixed[c], parts / (1 + shares[0, c] + shares[1, c]), atol=1e-6)
    assert torch.equal(mixed[1], OWN[1])


@given(seed=seeds, size=st.sampled_from([1.0, 1e3, 1e6]))
@examples(30)
def test_a_column_moves_at_most_six_sevenths_of_the_way_to_one_byzantine_peer(seed, size):
    """For any scores; without local data nothing moves."""
    source = generator(seed, "liar")
    own, received = torch.randn(4, 3, generator=source), size * torch.randn(1, 4, 3, generator=source)
    found = torch.rand(2, 4, generator=source)
    held, shared = torch.tensor([True, True, False, False]), torch.tensor([2])
    mixed = bristle.combine(own, received, held, shared, lambda models: found, source)
    moved, apart = (mixed - own).norm(dim=1), (received[0] - own).norm(dim=1)
    assert bool((moved <= 6 / 7 * apart * (1 + 1e-5)).all())
    assert torch.equal(bristle.combine(own, received, held & ~held, shared, lambda models: found, source), own)


def test_columns_of_unfamiliar_classes_can_be_moved_by_a_copy_of_the_familiar_ones():
    liar = OWN.clone()
    liar[2] = 100.0
    mixed = bristle.combine(OWN, liar[None], TWO, torch.tensor([2]), lambda models: torch.ones(2, 3), generator(0, "x"))
    assert torch.equal(mixed[:2], OWN[:2])
    assert float(mixed[2].mean()) > 40.0


@pytest.mark.parametrize(("count", "evaluated"), [(0, 1), (40, 12)])  # 4 + 5 + 2, and our own
def test_only_chosen_models_are_evaluated_and_inputs_are_not_modified(count, evaluated):
    own, received, seen = OWN.clone(), layers(40, 3, 4, "told")[:count], []

    def score(models):
        seen.append(len(models))
        return torch.ones(len(models), 3)

    mixed = bristle.combine(own, received, ALL, torch.full((count,), 3), score, generator(0, "x"))
    assert seen == [evaluated]
    assert torch.equal(own, OWN)
    assert torch.equal(received, layers(40, 3, 4, "told")[:count])
    assert torch.equal(mixed, OWN) == (count == 0)


def f1(guessed, true, classes):
    """Compute the F1 of each class from (…, N) and (N,) class numbers -> (…, C), 2·hits/(guesses + examples); 0 for a class in neither."""
    numbers = torch.arange(classes, device=true.device)
    named, there = guessed[..., None] == numbers, true[..., None] == numbers
    both = named.sum(dim=-2) + there.sum(dim=-2)
    return 2.0 * (named & there).sum(dim=-2) / both.clamp(min=1)


NODES, LIARS, ROUNDS, HELD = 10, 3, 12, 5


def learned(how):
    """Return the mean accuracy over ten classes of the honest, each with data of five. The frozen layers are the features themselves."""
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
            for _ in range(5):  # full batches; unfamiliar classes take no part in the softmax
                logits = torch.where(familiar[node], x[part] @ models[node].T, -math.inf)
                error = torch.softmax(logits, 1) - torch.nn.functional.one_hot(y[part], CLASSES)
                models[node] -= 0.5 * error.T @ x[part] / len(part)
        sent = models.clone()
        sent[:LIARS] = -3.0 * models[LIARS:].mean(0)
        if how == "alone":
            continue
        before = models.clone()
        for node in range(NODES):
            received = sent[torch.arange(NODES) != node]
            if how == "mean":
                models[node] = (before[node] + received.sum(0)) / NODES
                continue

            def score(heads, node=node, part=mine[node]):
                seen = torch.where(familiar[node], x[part] @ heads.transpose(-1, -2), -math.inf)
                return f1(seen.argmax(-1), y[part], CLASSES)

            shared = (familiar[torch.arange(NODES) != node] & familiar[node]).sum(1)
            models[node] = bristle.combine(before[node], received, familiar[node], shared, score, generator(turn, "try", node))
    guessed = (test_x @ models[LIARS:].transpose(-1, -2)).argmax(-1)
    return float((guessed == test_y).float().mean())


@pytest.mark.slow
def test_output_layers_are_learned_together_while_three_of_ten_are_byzantine():
    alone, together, mean = learned("alone"), learned("bristle"), learned("mean")
    assert alone < 0.5
    assert together > alone + 0.2
    assert mean < together - 0.2
