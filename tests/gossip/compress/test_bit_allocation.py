"""Layer-wise allocation: the best options within a budget, and a selector that allocates bytes by it."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from starling.gossip.compress import codec
from starling.gossip.compress.bit_allocation import least_error
from starling.gossip.compress.quantize import Float64, Int4
from starling.gossip.compress.select.coordinates import TopK
from starling.gossip.compress.select.layers import Layered, layers_of
from starling.gossip.compress.support import Full, Indices
from starling.gossip.rng import generator
from starling.gossip.vector import layout
from tests.strategies import examples, seeds

LAYERS, OPTIONS = 6, 4


def instance(seed):
    """Return options per layer with falling errors and rising bytes; layers differ in scale, as those of a network do."""
    chance = np.random.default_rng(seed)
    errors = np.sort(chance.random((LAYERS, OPTIONS)) * chance.random((LAYERS, 1)) * 3)[:, ::-1]
    sizes = np.sort(chance.integers(1, 1000, (LAYERS, OPTIONS))).astype(float)
    return errors, sizes


def total(table, choice):
    return table[np.arange(len(choice)), list(choice)].sum()


def every_choice(spent, budget):
    choices = itertools.product(range(OPTIONS), repeat=LAYERS)
    return (choice for choice in choices if total(spent, choice) <= budget)


@pytest.mark.parametrize("seed", range(20))
def test_the_allocation_equals_exhaustive_search(seed):
    """Whole bytes up to the number of buckets are not rounded at all."""
    errors, sizes = instance(seed)
    budget = sizes[:, 1].sum()
    choice = least_error(errors, sizes, budget)
    assert total(sizes, choice) <= budget
    assert total(errors, choice) == pytest.approx(min(total(errors, other) for other in every_choice(sizes, budget)), rel=1e-12)


@given(seed=seeds, share=st.floats(0.0, 1.0), buckets=st.integers(10, 200))
@examples(40)
def test_rounding_up_keeps_every_budget(seed, share, buckets):
    """However coarse the buckets, only allocations that surely fit are chosen."""
    errors, sizes = instance(seed)
    sizes = sizes + 0.5
    least, most = sizes[:, 0].sum(), sizes[:, -1].sum()
    budget = least + share * (most - least)
    try:
        choice = least_error(errors, sizes, budget, buckets)
    except ValueError:
        assert np.ceil(sizes[:, 0] / budget * buckets * (1 - 1e-12)).sum() > buckets
    else:
        assert total(sizes, choice) <= budget * (1 + 1e-9)


def test_a_sufficient_budget_takes_every_layer_s_best_option():
    errors, sizes = instance(1)
    assert least_error(errors, sizes, sizes.sum()) == (OPTIONS - 1,) * LAYERS


def test_ties_take_the_first_option():
    assert least_error(np.ones((3, 4)), np.ones((3, 4)), 3) == (0, 0, 0)


@pytest.mark.parametrize(
    ("errors", "sizes", "budget", "message"),
    [
        (np.ones((2, 2)), np.ones((2, 2)), 1.5, "budget must hold at least one option of each layer, 2 in all, got 1.5"),
        (np.ones((2, 2)), np.ones((2, 3)), 9, r"must be \(layers, options\), got \(2, 2\) and \(2, 3\)"),
        (np.ones((2, 0)), np.ones((2, 0)), 9, r"must be \(layers, options\)"),
        (-np.ones((2, 2)), np.ones((2, 2)), 9, "must be finite and >= 0"),
        (np.ones((2, 2)), np.full((2, 2), np.nan), 9, "must be finite and >= 0"),
        (np.ones((2, 2)), np.ones((2, 2)), 0, "budget must be > 0"),
    ],
)
def test_impossible_settings_are_refused(errors, sizes, budget, message):
    with pytest.raises(ValueError, match=message):
        least_error(errors, sizes, budget)


SIZES = (1000, 64, 4000, 128, 9000)
BOUNDS = tuple(zip(np.cumsum([0, *SIZES[:-1]]).tolist(), SIZES, strict=True))
DIM = sum(SIZES)
SCALES = (10.0, 0.1, 1.0, 0.3, 0.05)


def network(*labels):
    """Return layers whose numbers differ 200-fold in size."""
    return torch.cat(
        [
            scale * torch.randn(size, generator=generator(0, "layers", layer, *labels), dtype=torch.float64)
            for layer, (size, scale) in enumerate(zip(SIZES, SCALES, strict=True))
        ]
    )


def kept_in(support, layer):
    offset, size = BOUNDS[layer]
    return support.indices[(support.indices >= offset) & (support.indices < offset + size)] - offset


@given(seed=seeds, budget=st.integers(40, 20_000))
@examples(30)
def test_a_payload_keeps_its_byte_budget_and_uses_most_of_it(seed, budget):
    selector = Layered(BOUNDS, budget, Int4())
    support = selector.select(network(seed), None, 0, 0)
    size = codec.size(support, Int4(), DIM)
    assert size <= budget
    if budget >= 200 and support != Full():
        assert size >= 0.8 * budget


def test_each_layer_sends_its_largest_coordinates():
    x = network(1)
    support = Layered(BOUNDS, 1500, Int4()).select(x, None, 0, 0)
    for layer, (offset, size) in enumerate(BOUNDS):
        kept = kept_in(support, layer)
        if 0 < kept.numel() < size:
            assert torch.equal(kept, TopK(kept.numel() / size).select(x[offset : offset + size], None, 0, 0).indices)


@given(seed=seeds, budget=st.integers(100, 6000))
@examples(20)
def test_the_sum_of_layer_errors_is_at_most_that_of_equal_shares(seed, budget):
    """That sum is minimised, and each layer keeps half of its share however large other layers' numbers are."""

    def error(indices):
        rest = x.clone()
        rest[indices] = 0.0
        return sum(float(rest[offset : offset + size].norm()) for offset, size in BOUNDS)

    x = network(seed)
    support = Layered(BOUNDS, budget, Int4()).select(x, None, 0, 0)
    shares = [support.size(DIM) * size // DIM for size in SIZES]
    equal = [x[o : o + s].abs().topk(k).indices + o for (o, s), k in zip(BOUNDS, shares, strict=True)]
    assert error(support.indices) <= error(torch.cat(equal)) * (1 + 1e-12)
    assert all(kept_in(support, layer).numel() >= round(0.5 * k) for layer, k in enumerate(shares))


def test_bytes_are_allocated_where_they_reduce_the_error_most():
    """Of two layers of equal size, one has all its weight in a few coordinates: it gets those, and the other layer the rest."""
    x = torch.randn(2000, generator=generator(4), dtype=torch.float64)
    x[:1000] *= 1e-3
    x[:1000:50] = 30.0
    support = Layered(((0, 1000), (1000, 1000)), 150, Int4()).select(x, None, 0, 0)
    first = int((support.indices < 1000).sum())
    assert first < 0.4 * support.size(2000)
    assert torch.isin(torch.arange(0, 1000, 50), support.indices).all()


def test_equal_layers_get_about_equal_shares():
    x = torch.randn(4000, generator=generator(3), dtype=torch.float64)
    quarters = tuple((1000 * layer, 1000) for layer in range(4))
    support = Layered(quarters, 400, Int4()).select(x, None, 0, 0)
    counts = torch.bincount(support.indices // 1000, minlength=4)
    assert counts.min() > 0.7 * counts.max()


def test_bytes_are_spent_on_changes_since_the_last_exchange():
    x, reference = network(1), network(2)
    selector = Layered(BOUNDS, 1000, Int4())
    assert selector.select(x, reference, 0, 0) == selector.select(x - reference, None, 0, 0)
    assert selector.select(x, reference, 1, 5) == selector.select(x, reference, 0, 0), "nothing is drawn"


def test_a_sufficient_budget_sends_everything_and_no_budget_one_coordinate():
    x = network(1)
    assert Layered(BOUNDS, codec.size(Full(), Int4(), DIM), Int4()).select(x, None, 0, 0) == Full()
    assert Layered(BOUNDS, 1, Float64()).select(x, None, 0, 0) == Indices(x.abs().argmax().view(1))


def test_inputs_are_not_modified():
    x, reference = network(1), network(2)
    before = x.clone(), reference.clone()
    Layered(BOUNDS, 1000, Int4()).select(x, reference, 0, 0)
    assert torch.equal(x, before[0])
    assert torch.equal(reference, before[1])


def test_the_layers_of_a_model_are_its_parameters():
    assert layers_of(layout(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False)))) == ((0, 12), (12, 4), (16, 8))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layered(((0, 5), (6, 5)), 10, Int4()), r"layers must follow one another from 0 on, got \(6, 5\) at 5"),
        (lambda: Layered((), 10, Int4()), "need a layer and budget_bytes >= 1, got 0, 10"),
        (lambda: Layered(BOUNDS, 0, Int4()), "need a layer and budget_bytes >= 1, got 5, 0"),
        (lambda: Layered(BOUNDS, 10, Int4()).select(torch.ones(5), None, 0, 0), f"layers end at {DIM}, the vector at 5"),
    ],
)
def test_impossible_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
