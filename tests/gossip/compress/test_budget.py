"""Budgets: the largest mask that fits, and never more bytes than allowed unless a single block exceeds them."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.compress import codec
from starling.gossip.compress.budget import JUDGED, LEAST_EFFORT, WHOLE, WORK, Effort, affordable, exchange_budget, plan
from starling.gossip.compress.quantize import Float32, Fp16, Int4
from starling.gossip.compress.select.coordinates import Mask
from starling.gossip.compress.support import blocks_in
from tests.strategies import examples


def cost(ratio, dim, request, response):
    """Return the largest payload of any step: a mask without the short last block."""
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
    ("rate", "cap", "expected"), [(0.0, 0.0, 0), (1000.0, 0.0, 500), (0.0, 800.0, 400), (1000.0, 800.0, 400), (0.1, 0.0, 1)]
)
def test_the_budget_of_an_exchange_never_exceeds_the_volunteers_cap(rate, cap, expected):
    """If nothing is known it is 0, no limit; otherwise at least one byte, since 0 would mean the opposite."""
    assert exchange_budget(rate, 2.0, 0.25, cap) == expected


def test_planning_needs_no_torch():
    code = "import sys, starling.gossip.compress.budget; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def judged(effort, trained_s, exchanged_s):
    """Make as many calls as are judged together."""
    effort.trained(trained_s)
    for _ in range(JUDGED):
        effort.exchanged(exchanged_s / JUDGED)
    return effort.part


def test_exchange_sizes_adapt_to_a_small_share_of_local_step_time():
    effort, whole_s = Effort(), 0.04
    for _ in range(20):
        judged(effort, 1.0, whole_s * effort.part)
    assert effort.part == pytest.approx(WORK / whole_s)
    assert effort.of(100 * WHOLE) == pytest.approx(affordable(100 * WHOLE) * WORK / whole_s)
    assert effort.of(WHOLE) == 1.0, "a short vector is exchanged as a whole"
    assert judged(effort, 100.0, whole_s) == pytest.approx(2.0 * WORK / whole_s), "not at once"
    assert judged(effort, 100.0, whole_s) == 1.0


def test_exchanges_that_are_always_slow_keep_a_minimum_size():
    effort = Effort()
    for _ in range(20):
        judged(effort, 1.0, 10.0)
    assert effort.part == LEAST_EFFORT


def test_without_measured_times_exchange_sizes_are_not_limited():
    effort = Effort()
    assert judged(effort, 1.0, 0.0) == 1.0, "as in virtual time"
    assert judged(effort, 0.0, 1.0) == 1.0
