"""Vectors from a neighboring stage are limited to a length that its past allows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.crews import FORGERIES, forged, without_bound
from starling.node.config.schema import OptimizerSection
from starling.node.extras.crew.engine.bound import ENOUGH, MOST, LaneBound

SGD = OptimizerSection(kind="sgd", lr=0.05, schedule="constant")


def length(values):
    return float(values.square().mean().sqrt())


@given(st.lists(st.floats(0.5, 0.5 * MOST), min_size=1, max_size=40))
def test_vectors_within_the_bound_are_unchanged(lengths):
    bound, values = LaneBound(), torch.linspace(-1.0, 1.0, 24).view(2, 12)
    for each in lengths:
        assert torch.equal(bound(values * each), values * each)
        assert bound.shortened == 0.0


@given(st.floats(1.1 * MOST, 1e30), st.integers(1, 3))
def test_longer_vectors_are_scaled_to_the_bound(times, samples):
    """A micro-batch may have one sample more than another, so lengths are root mean squares."""
    bound, values = LaneBound(), torch.ones(2, 3)
    for _ in range(ENOUGH):
        bound(values)
    short = bound(torch.ones(samples, 3) * times)
    assert length(short) == pytest.approx(MOST, rel=1e-5)
    assert torch.equal(short, short[0, 0].expand_as(short))
    assert bound.shortened == pytest.approx(times, rel=1e-5)


def test_a_forger_raises_the_bound_only_with_a_majority_of_results():
    """A minority of forged vectors among 256 does not change the bound."""
    bound, values = LaneBound(), torch.ones(4)
    for _ in range(256):
        bound(values)
    for _ in range(127):
        assert length(bound(values * 1e9)) == pytest.approx(MOST)
    assert length(bound(values * 1e9)) == pytest.approx(MOST)


def test_without_a_past_or_after_zeros_only_nothing_is_bounded():
    bound = LaneBound()
    for each in (1e-3, 1e3, 0.0, 0.0, 0.0):
        bound(torch.full((3,), each))
    assert torch.equal(bound(torch.ones(3)), torch.ones(3)), "a gradient that was zero may begin"


@pytest.mark.parametrize("name", ["activations × 10⁶", "gradients × 10⁶"])
def test_temporarily_forged_lengths_do_not_end_learning(name):
    """Without the bound its neighbor's parameters would move so far that learning stops."""
    way, forge = FORGERIES[name]
    honest, moved = forged(SGD, "", forge)
    with without_bound():
        worst, thrown = forged(SGD, way, forge)
    bounded, moved_less = forged(SGD, way, forge)
    assert worst > 2.0
    assert thrown > 1e6
    assert bounded < honest + 0.5
    assert moved_less < 5.0 * moved
