"""Two magnitudes per bucket: the error bound includes their rounding, zeros and tiny numbers too, and values have one encoding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.compress.quantize.spread import Spread2
from starling.gossip.rng import generator
from tests.strategies import examples, seeds

TINY = torch.finfo(torch.float32).tiny  # 2**-126, the least normal number


def sent(q, x):
    return q.decode(q.encode(x, generator(0)), x.numel())


@given(x=st.lists(st.floats(-(2.0**120), 2.0**120, width=32), min_size=1, max_size=40).map(torch.tensor), bucket=st.sampled_from([8, 16]))
@examples(60)
def test_every_value_s_error_is_within_the_spread_s_bound(x, bucket):
    """|Q(x) − x| <= |x|·max((h − l)/(h + l), 2⁻⁸) with l and h as sent; subnormal numbers may become zero."""
    for part in x.double().split(bucket):
        decoded, magnitude = sent(Spread2(bucket), part).double(), part.abs()
        low, high = decoded.abs().min(), decoded.abs().max()
        share = max(float((high - low) / (high + low)) if high else 0.0, 2.0**-8)
        assert bool(((decoded - part).abs() <= magnitude * share * (1 + 1e-6) + TINY).all())


@given(seed=seeds, others=st.floats(0.0, 0.6), bucket=st.sampled_from([8, 64, 256]))
@examples(40)
def test_omega_bounds_the_worst_case(seed, others, bucket):
    """One large value, one zero, and all others at one place in between."""
    x = torch.full((bucket,), others)
    x[0], x[1] = 1.0 + float(torch.rand((), generator=generator(seed))) * 2**-7, 0.0
    error = (sent(Spread2(bucket), x) - x).double().square().sum() / x.double().square().sum()
    assert error <= Spread2(bucket).omega < 1.0


def test_omega_is_nearly_reached():
    x = torch.full((64,), 0.5)
    x[0], x[1] = 1.0, 0.0
    error = float((sent(Spread2(64), x) - x).square().sum() / x.square().sum())
    assert 0.95 * Spread2(64).omega < error


def test_one_magnitude_is_exact_to_its_rounding():
    x = torch.tensor([0.3, -0.3] * 20)
    assert (sent(Spread2(), x) - x).abs().max() <= 0.3 * 2**-8


def test_two_magnitudes_are_kept_with_their_signs():
    x = torch.tensor([0.5, -2.0, 2.0, -0.5, 0.5])
    assert torch.equal(sent(Spread2(), x), x)


@pytest.mark.parametrize("x", [torch.zeros(300), torch.full((9,), TINY / 2), torch.tensor([-TINY / 4, 0.0])])
def test_zeros_and_subnormal_numbers_become_zeros(x):
    decoded = sent(Spread2(8), x)
    assert not decoded.any()
    assert not torch.signbit(decoded).any()


@pytest.mark.parametrize("low", [0.0, 0.6 * TINY, 0.9 * TINY])
def test_a_bucket_may_begin_below_the_normal_numbers(low):
    """The smallest magnitude is subnormal and nearer to the largest than to 0: the bytes must still decode."""
    rest = torch.tensor([-TINY, TINY * 2])
    below = sent(Spread2(8), torch.cat((torch.tensor([low]), rest)))
    assert torch.equal(below, sent(Spread2(8), torch.cat((torch.zeros(1), rest))))
    assert below[0] == 0.0


def test_a_tie_in_the_rounding_of_the_largest_has_one_encoding():
    """1 + 3·2⁻⁸ lies midway between two bfloat16 and becomes the upper one: the bucket's largest value is still coded as h."""
    x = torch.tensor([1 + 2**-7, 1 + 3 * 2**-8])
    assert sent(Spread2(8), x).tolist() == [1 + 2**-7, 1 + 2**-6]


@given(seed=seeds, count=st.integers(1, 300), at=st.integers(0, 10**6), byte=st.integers(0, 255))
@examples(60)
def test_decoded_values_encode_to_the_same_bytes(seed, count, at, byte):
    """Values have one encoding, whatever a peer changes."""
    q = Spread2(64)
    data = bytearray(q.encode(torch.randn(count, generator=generator(seed)), generator(0)))
    data[at % len(data)] = byte
    try:
        values = q.decode(bytes(data), count)
    except ValueError as error:
        reason = str(error)
    else:
        reason = "bad_code" if q.encode(values, generator(0)) == bytes(data) else "another encoding"
    assert reason in {"bad_scale", "bad_code", "bad_padding"}


def test_long_vectors_are_quantised_as_their_buckets():
    x = torch.randn((1 << 19) + 300, generator=generator(0))
    decoded = sent(Spread2(), x)
    assert torch.equal(decoded[1 << 19 :], sent(Spread2(), x[1 << 19 :]))
    assert torch.equal(decoded, Spread2().through(x, torch.empty(0, dtype=torch.int64)))


@pytest.mark.parametrize("bucket", [0, 12, 8192])
def test_refuses_a_bucket_that_does_not_fill_bytes(bucket):
    with pytest.raises(ValueError, match="bucket"):
        Spread2(bucket)
