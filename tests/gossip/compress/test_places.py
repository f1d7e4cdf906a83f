"""Coordinates read and written range by range are those that `index` lists, in the same order."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.compress.support import Blocks, Fragment, Full, Indices, Support, blocks_in
from starling.gossip.vector import blank
from tests.strategies import examples, seeds


def supports(dim, seed, block):
    blocks = blocks_in(dim, block)
    every = torch.arange(dim)
    yield Full()
    yield Fragment(seed % 2, 2)
    yield Indices(every[every % 3 != seed % 3])
    for count in {1, (blocks + 1) // 2, blocks}:
        yield Blocks(seed, seed % blocks, count, block)


@given(dim=st.integers(4, 200), seed=seeds, block=st.integers(1, 70), most=st.integers(1, 250))
@examples(80)
def test_ranges_are_the_coordinates_in_order(dim, seed, block, most):
    x, values = torch.arange(float(dim)), -1.0 - torch.arange(float(dim))
    for support in supports(dim, seed, block):
        index = support.index(dim)
        places = list(support.places(dim, most))
        assert torch.equal(torch.cat([place.read(x) for place in places]), x[index])
        assert torch.equal(torch.cat([x[index][place.part] for place in places]), x[index])
        assert torch.equal(support.read(x), x[index])
        assert all(len(place.read(x)) <= max(most, block) for place in places)
        changed, expected = x.clone(), x.clone()
        expected[index] = values[: len(x[index])]
        for place in places:
            place.write(changed, values[: len(x[index])][place.part])
        assert torch.equal(changed, expected)


@given(dim=st.integers(4, 200), seed=seeds, block=st.integers(1, 70), share=st.integers(1, 9))
@examples(80)
def test_coordinates_are_found_where_the_values_have_them_and_all_of_them(dim, seed, block, share):
    x = torch.arange(float(dim))
    places = torch.nonzero(torch.arange(dim) * (seed | 1) % 10 < share).view(-1)
    for support in supports(dim, seed, block):
        which, at = support.find(places, dim)
        assert torch.equal(support.take(x)[at], x[places[which]])
        assert set(places[which].tolist()) == set(places.tolist()) & set(x[support.index(dim)].long().tolist())


def test_coefficients_are_at_no_coordinates():
    assert Support().find(torch.arange(3), 3) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_zeros_that_take_no_memory_are_read_as_others(dtype):
    zeros = blank(100, torch.ones(1, dtype=dtype))
    for support in supports(100, 3, 7):
        for place in support.places(100, 30):
            assert torch.equal(place.read(zeros), torch.zeros(len(range(100)[place.part]), dtype=dtype))
