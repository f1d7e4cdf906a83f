"""Symmetric clipping bounds an exchange and keeps both ends antisymmetric, for any vector."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.rng import generator
from starling.robust.clip import clip
from tests.strategies import examples, exponents, seeds


def gaussian(seed, count=50, dtype=torch.float32):
    return torch.randn(count, generator=generator(seed), dtype=dtype)


@given(seed=seeds, exponent=st.integers(-37, 37), tau=st.floats(1e-6, 1e6))
@examples(60)
def test_clipping_is_odd_to_the_bit(seed, exponent, tau):
    v = gaussian(seed) * 10.0**exponent
    before = v.clone()
    (plus, clipped_plus), (minus, clipped_minus) = clip(v, tau), clip(-v, tau)
    assert torch.equal(v, before)
    assert torch.equal(plus, -minus)
    assert clipped_plus == clipped_minus


@given(seed=seeds, exponent=exponents, tau=st.floats(1e-3, 1e3))
@examples(60)
def test_the_norm_never_exceeds_tau_and_the_direction_stays(seed, exponent, tau):
    """For float64 of any magnitude: overflowing squares must not give zero or infinity."""
    v = gaussian(seed, dtype=torch.float64) * 10.0**exponent
    shortened, clipped = clip(v, tau)
    unit = v / v.abs().max()
    norm = float(unit.norm()) * float(v.abs().max())
    assert clipped == (norm > tau)
    if clipped:
        assert float(shortened.norm()) == pytest.approx(tau, rel=1e-12)
        assert torch.allclose(shortened / tau, unit / unit.norm(), rtol=1e-12, atol=0)
    else:
        assert shortened is v


@given(seed=seeds, factor=st.floats(0.25, 4.0), tau=st.floats(1e-3, 1e3), dtype=st.sampled_from([torch.float32, torch.float64]))
@examples(100)
def test_near_the_threshold_only_longer_vectors_are_clipped(seed, factor, tau, dtype):
    """Norms within a factor 4 of tau: shorter vectors are returned unchanged, longer ones get norm tau and keep their direction."""
    unit = gaussian(seed, dtype=torch.float64)
    v = (unit * (factor * tau / unit.norm())).to(dtype)
    norm = float(v.double().norm())
    shortened, clipped = clip(v, tau)
    assert clipped == (norm > tau)
    assert float(shortened.double().norm()) == pytest.approx(min(norm, tau), rel=1e-6)
    if clipped:
        torch.testing.assert_close(shortened.double() / tau, v.double() / norm, rtol=1e-5, atol=1e-7)
    else:
        assert shortened is v


def test_huge_float32_vectors_are_clipped_accurately():
    """‖v‖ far above float32's range, and tau/‖v‖ below it."""
    v = torch.full((10_000,), 3e38)
    shortened, clipped = clip(v, 1.0)
    assert clipped
    assert torch.allclose(shortened, torch.full_like(v, 0.01), rtol=1e-6)


@pytest.mark.parametrize("shorter", [1e-9, 1e-6, 1e-4])
def test_close_decisions_do_not_use_float32_sums(shorter):
    """For equal numbers, whose squares are all rounded in the same direction."""
    v = torch.full((1 << 18,), 48 / 97)  # a float32 sum is 2.4e-4 too short
    norm = float(v.double().norm())
    assert clip(v, norm * (1 - shorter))[1]
    assert not clip(v, norm * (1 + shorter))[1]


@pytest.mark.parametrize("tau", [1e-30, 1e-26, 1e-23])
def test_squares_that_overflow_float32_count(tau):
    v = torch.full((100,), 1e-25)
    assert clip(v, tau)[1] == (tau < 1e-24)


@pytest.mark.parametrize(("value", "tau"), [(0.0, 1e-9), (1e30, 0.0)])
def test_a_vector_of_0_and_a_threshold_of_0_clip_nothing(value, tau):
    v = torch.full((5,), value)
    assert clip(v, tau) == (v, False)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_a_vector_that_is_not_finite_is_refused(bad, tau):
    with pytest.raises(ValueError, match="not_finite"):
        clip(torch.tensor([1.0, bad]), tau)


@pytest.mark.parametrize("tau", [-1.0, math.nan, math.inf])
def test_a_threshold_must_be_finite_and_not_negative(tau):
    with pytest.raises(ValueError, match="tau must be"):
        clip(torch.ones(2), tau)
