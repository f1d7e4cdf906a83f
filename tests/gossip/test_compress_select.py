"""Supports name coordinates the same way on every machine; selectors choose them exactly."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip.compress.select import DriftTopK, Everything, Mask, TopK, kept, with_wish
from gossip.compress.support import Blocks, Full, Indices, blocks_in
from gossip.rng import generator


def indices(*values):
    return Indices(torch.tensor(values, dtype=torch.int64))


def gaussian(count, *labels):
    return torch.randn(count, generator=generator(0, *labels))


@st.composite
def vectors_and_supports(draw):
    dim = draw(st.integers(1, 600))
    block = draw(st.sampled_from([1, 7, 64]))
    blocks = blocks_in(dim, block)
    some = draw(st.sets(st.integers(0, dim - 1), min_size=1, max_size=20))
    seed, start, count = draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, blocks - 1)), draw(st.integers(1, blocks))
    return dim, draw(st.sampled_from([Full(), Blocks(seed, start, count, block), indices(*sorted(some))]))


@given(case=vectors_and_supports())
@settings(max_examples=60, deadline=None)
def test_a_support_takes_its_coordinates_in_ascending_order(case):
    """Size, ratio, index and values agree, so that what one end takes the other end adds in the right places."""
    dim, support = case
    x = torch.arange(dim, dtype=torch.float64)
    taken = support.take(x)
    assert taken.numel() == support.size(dim) == round(support.ratio(dim) * dim)
    assert (taken[1:] > taken[:-1]).all()
    assert torch.equal(x[support.index(dim)], taken)


@given(case=vectors_and_supports())
@settings(max_examples=30, deadline=None)
def test_what_is_taken_is_a_copy(case):
    """An exchange works on a snapshot: adding to the model later must not change it."""
    dim, support = case
    x = torch.zeros(dim)
    taken = support.take(x)
    x[support.index(dim)] += 1.0
    assert not taken.any()


@given(seed=st.integers(0, 2**64 - 1), dim=st.integers(1, 3000), ratio=st.floats(0.02, 1.0))
@settings(max_examples=40, deadline=None)
def test_a_rolling_mask_visits_every_coordinate_before_any_twice(seed, dim, ratio):
    """Over as many exchanges as there are blocks, each coordinate is exchanged exactly `count` times; this is also why the
    mask keeps exactly its share of ‖x‖² on average, for every vector."""
    mask, x = Mask(ratio), torch.zeros(dim)
    blocks = blocks_in(dim)
    visits = torch.zeros(dim)
    for turn in range(blocks):
        visits[mask.select(x, None, seed, turn).index(dim)] += 1
        assert visits.max() - visits.min() <= 1
    assert torch.equal(visits, torch.full((dim,), float(kept(ratio, blocks))))


def test_the_mask_is_the_same_on_every_machine():
    """Part of the protocol: both ends derive it. Numbers written down once, from numpy's frozen Philox stream."""
    assert Blocks(2026, 3, 4).index(1000)[::64].tolist() == MASK_OF_2026


MASK_OF_2026 = [64, 384, 448, 576]


def test_a_mask_that_holds_the_short_last_block_is_shorter():
    supports = [Blocks(5, start, 1) for start in range(4)]
    assert sorted(support.size(200) for support in supports) == [8, 64, 64, 64]


def test_supports_compare_by_the_coordinates_they_name():
    assert indices(1, 5) == indices(1, 5)
    assert indices(1, 5) != indices(1, 6)
    assert Blocks(1, 2, 3) == Blocks(1, 2, 3)
    assert Full() == Full()
    assert Full() != indices(0)


@pytest.mark.parametrize(
    "values",
    [[], [3, 3], [4, 3], [-1, 2], [0.5], [[1, 2]]],
    ids=["none", "twice", "falling", "negative", "float", "2-d"],
)
def test_indices_must_be_strictly_increasing(values):
    """A repeated index would multiply a peer's influence on that coordinate."""
    with pytest.raises(ValueError, match="indices must"):
        Indices(torch.tensor(values) if values else torch.empty(0, dtype=torch.int64))


@pytest.mark.parametrize("fields", [(-1, 0, 1), (2**64, 0, 1), (0, -1, 1), (0, 0, 0), (0, 0, 1, 0)])
def test_a_mask_out_of_bounds_cannot_be_made(fields):
    with pytest.raises(ValueError, match=r"seed|start"):
        Blocks(*fields)


def test_a_mask_of_a_larger_vector_is_refused():
    with pytest.raises(ValueError, match="do not fit"):
        Blocks(0, 9, 1).index(100)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60), st.floats(0.01, 1.0))
@settings(max_examples=80, deadline=None)
def test_top_k_is_exact_and_breaks_ties_by_the_lowest_index(values, ratio):
    """Both ends and every device must agree, whatever order their sort leaves equal values in."""
    x = torch.tensor(values, dtype=torch.float32)
    k = kept(ratio, x.numel())
    expected = sorted(sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))[:k])
    support = TopK(ratio).select(x, None, 0, 0)
    assert torch.arange(x.numel())[support.index(x.numel())].tolist() == expected


def test_drift_top_k_sends_what_moved_since_the_last_exchange():
    reference = gaussian(100) * 10
    x = reference.clone()
    x[[7, 40]] += 0.5
    assert DriftTopK(0.02).select(x, reference, 0, 0) == indices(7, 40)


def test_drift_top_k_counts_a_peer_never_met_as_met_at_zero():
    x = gaussian(100)
    assert DriftTopK(0.1).select(x, None, 0, 0) == TopK(0.1).select(x, None, 0, 0)


@pytest.mark.parametrize("selector", [Everything(), Mask(0.3), TopK(0.3), DriftTopK(0.3)])
def test_selectors_modify_nothing_and_repeat_themselves(selector):
    x, reference = gaussian(500), gaussian(500, "reference")
    before = x.clone(), reference.clone()
    assert selector.select(x, reference, 3, 4) == selector.select(x, reference, 3, 4)
    assert torch.equal(x, before[0])
    assert torch.equal(reference, before[1])


@pytest.mark.parametrize("selector", [Mask(1.0), TopK(1.0), DriftTopK(1.0)])
def test_a_ratio_of_one_is_the_whole_vector(selector):
    assert selector.select(torch.zeros(100), None, 0, 0) == Full()


@pytest.mark.parametrize("selector", [Mask, TopK, DriftTopK])
@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.1, float("nan")])
def test_a_ratio_outside_zero_to_one_is_refused(selector, ratio):
    with pytest.raises(ValueError, match=r"ratio must be in \(0, 1\]"):
        selector(ratio)


def test_a_ratio_times_a_size_is_rounded_up_but_not_for_a_rounding_error():
    assert kept(0.1, 30) == 3  # 0.1 · 30 is 3.0000000000000004
    assert kept(0.1, 31) == 4
    assert kept(0.001, 5) == 1


sets = st.sets(st.integers(0, 99), min_size=1, max_size=30).map(sorted)


@given(own=sets, wish=sets, extra=st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_a_wish_is_granted_after_our_own_coordinates_up_to_the_limit(own, wish, extra):
    """A peer's wish may cost at most the limit and never pushes out what we need."""
    limit = len(own) + extra
    joined = set(with_wish(indices(*own), indices(*wish), limit).indices.tolist())
    assert set(own) <= joined <= set(own) | set(wish)
    assert len(joined) == min(limit, len(set(own) | set(wish)))


def test_a_wish_cannot_shrink_our_own_support():
    with pytest.raises(ValueError, match="limit"):
        with_wish(indices(1, 2), indices(3), 1)
