"""Budgets: the largest mask that fits, and never more bytes than allowed unless one block is too many already."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.compress import codec
from starling.gossip.compress.budget import exchange_budget, plan
from starling.gossip.compress.quantize import Float32, Fp16, Int4
from starling.gossip.compress.select.coordinates import Mask
from starling.gossip.compress.support import blocks_in
from tests.strategies import examples


def cost(ratio, dim, request, response):
    """The most that payloads of any turn can take: a mask without the short last block."""
    x = torch.zeros(dim)
    masks = [Mask(ratio).select(x, None, 0, turn) for turn in range(blocks_in(dim))]
    return max(codec.size(mask, request, dim) + codec.values_size(mask, response, dim) for mask in masks)


@given(budget=st.integers(1, 20_000), dim=st.integers(1, 5000))
@examples(60)
def test_the_plan_fits_the_budget_and_one_block_more_would_not(budget, dim):
    request, response = Fp16(), Int4()
    blocks = blocks_in(dim)
    ratio = plan(budget, dim, request, response)
    chosen = round(ratio * blocks)
    assert 1 <= chosen <= blocks
    assert cost(ratio, dim, request, response) <= budget or chosen == 1
    if chosen < blocks - 1:
        assert cost((chosen + 1) / blocks, dim, request, response) > budget


def test_no_budget_means_the_whole_vector():
    assert plan(0, 10**9, Fp16(), Int4()) == 1.0


def test_the_whole_vector_is_sent_where_it_fits():
    full = codec.HEADER.size * 2 + Fp16().size(1000) + Int4().size(1000)
    assert plan(full, 1000, Fp16(), Int4()) == 1.0
    assert plan(full - 1, 1000, Fp16(), Int4()) < 1.0


def test_a_budget_too_small_for_anything_still_sends_one_block():
    assert plan(1, 6400, Float32(), Float32()) == 0.01


@pytest.mark.parametrize(
    ("rate", "cap", "expected"),
    [(0.0, 0.0, 0), (1000.0, 0.0, 500), (0.0, 800.0, 400), (1000.0, 800.0, 400), (0.1, 0.0, 1)],
)
def test_the_budget_of_an_exchange_never_exceeds_the_volunteers_cap(rate, cap, expected):
    """Nothing known is 0, no limit; anything known is at least one byte, since 0 would mean the opposite."""
    assert exchange_budget(rate, 2.0, 0.25, cap) == expected


def test_planning_needs_no_torch():
    code = "import sys, starling.gossip.compress.budget; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
