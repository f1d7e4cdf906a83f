"""Every compressor keeps the promise the convergence proofs rest on, and every quantizer the one antisymmetry rests on."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip.catalogue import build
from gossip.compress.catalogue import BY_CODE, QUANTIZERS, SELECTORS, quantizer
from gossip.compress.chain import Chain
from gossip.compress.feedback import compress_with_feedback
from gossip.compress.quantize import BUCKET, Float32, Float64, Fp16, Int4, Int8, identity
from gossip.compress.select import Everything, TopK
from gossip.errors import ConfigError
from gossip.rng import generator

SELECTED = {name: {} if name == "full" else {"ratio": 0.1} for name in SELECTORS}
COMPRESSORS = [
    pytest.param(
        Chain(build("compress", SELECTORS, select, params), quantizer(name, torch.float32)), id=f"{select}-{name}"
    )
    for select, params in SELECTED.items()
    for name in QUANTIZERS
]
EXACT = [Float32(), Float64(), Fp16()]
BY_CHANCE = [(Int8(), 127), (Int4(), 7)]
magnitudes = st.integers(-100, 100).map(lambda exponent: 2.0**exponent)


def gaussian(count, *labels, dtype=torch.float32):
    return torch.randn(count, generator=generator(0, "values", *labels), dtype=dtype)


def heavy(count, *labels):
    """Student-like tails: one value in a bucket dwarfs the others, the worst case for a shared step."""
    return gaussian(count, *labels) / gaussian(count, *labels, "below").abs().clamp_min(1e-3)


def through(q, values, *labels):
    return q.decode(q.encode(values, generator(1, *labels)), values.numel())


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("draw", [gaussian, heavy])
def test_contraction_holds_in_expectation(compressor, draw):
    """E‖x − Q(x)‖² <= (1 − δ)‖x‖²: the one inequality every convergence proof uses. A mask keeps its share over all seeds,
    so its vector must not hide in one block."""
    x = gaussian(1000) if compressor.selector == SELECTORS["mask"](0.1) else draw(1000)
    errors = [(x - compressor.compress(x, generator(seed))).square().sum().item() for seed in range(60)]
    spread = torch.tensor(errors).std().item() / math.sqrt(len(errors))
    assert sum(errors) / len(errors) <= (1 - compressor.contraction(1000)) * x.square().sum().item() + 4 * spread + 1e-6


@given(ratio=st.floats(0.01, 1.0), seed=st.integers(0, 2**32), dim=st.integers(1, 300))
@settings(max_examples=40, deadline=None)
def test_contraction_of_top_k_holds_for_every_draw(ratio, seed, dim):
    """‖x − Q(x)‖² <= (1 − k/d)‖x‖² for each vector, not just on average."""
    x = torch.randn(dim, generator=generator(seed), dtype=torch.float64)
    compressor = Chain(TopK(ratio), Float64())
    error = (x - compressor.compress(x, generator(0))).square().sum()
    assert error <= (1 - compressor.contraction(dim)) * x.square().sum() * (1 + 1e-12)


@pytest.mark.parametrize(("q", "levels"), BY_CHANCE)
@given(scale=magnitudes, seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_integer_quantizers_contract_at_every_magnitude(q, levels, scale, seed):
    """A nearly converged swarm exchanges differences of 1e-12: the relative error must not grow as they shrink."""
    x = torch.randn(4 * BUCKET, generator=generator(seed)) * scale
    errors = [(through(q, x, n).double() - x.double()).square().sum() for n in range(10)]
    assert sum(errors) / len(errors) <= q.omega * x.double().square().sum()


@pytest.mark.parametrize(("q", "levels"), BY_CHANCE)
def test_integer_quantizers_are_unbiased(q, levels):
    """The mean over the quantizer's own chance is the value itself: nothing to feed back."""
    x = heavy(3 * BUCKET + 5)
    draws = 2000
    stream = generator(3)
    mean = sum(q.decode(q.encode(x, stream), x.numel()).double() for _ in range(draws)) / draws
    steps = torch.nn.functional.pad(x.abs(), (0, BUCKET - 5)).view(-1, BUCKET).amax(1) / levels * (1 + 2**-7)
    bound = 5 * steps.repeat_interleave(BUCKET)[: x.numel()] / (2 * math.sqrt(draws))
    assert ((mean - x).abs() <= bound).all()


@pytest.mark.parametrize(("q", "levels"), BY_CHANCE)
@given(seed=st.integers(0, 2**32), scale=magnitudes, count=st.integers(1, 200))
@settings(max_examples=30, deadline=None)
def test_each_value_becomes_one_of_its_two_neighbouring_multiples_of_the_step(q, levels, seed, scale, count):
    """So an exchange never moves a coordinate past the largest one of its bucket by more than the step's rounding."""
    x = torch.randn(count, generator=generator(seed)) * scale
    decoded = through(q, x, seed)
    peak = torch.nn.functional.pad(x.abs(), (0, -count % BUCKET)).view(-1, BUCKET).amax(1)
    step = (peak.double() / levels * (1 + 2**-7)).repeat_interleave(BUCKET)[:count]
    assert ((decoded.double() - x.double()).abs() < step).all()


@pytest.mark.parametrize("q", EXACT)
@given(seed=st.integers(0, 2**32), count=st.integers(0, 100))
@settings(max_examples=10, deadline=None)
def test_floats_decode_to_what_reencodes_to_the_same_bytes(q, seed, count):
    data = q.encode(torch.randn(count, generator=generator(seed), dtype=torch.float64), generator(0))
    assert q.encode(q.decode(data, count), generator(0)) == data


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identity_changes_no_bit(dtype):
    x = gaussian(1000, dtype=dtype)
    decoded = through(identity(dtype), x)
    assert decoded.dtype == dtype
    assert torch.equal(decoded, x)


def test_fp16_is_odd_so_that_antisymmetry_survives_it():
    x = gaussian(1000) * 1e3
    assert torch.equal(through(Fp16(), -x), -through(Fp16(), x))


@pytest.mark.parametrize("q", BY_CODE.values(), ids=lambda q: type(q).__name__)
class TestEveryQuantizer:
    def test_announces_its_size(self, q):
        for count in (0, 1, 2, 63, 64, 65, 200):
            assert len(q.encode(gaussian(count), generator(0))) == q.size(count)

    def test_decodes_to_the_same_bits_at_both_ends(self, q):
        """Both ends apply what they decode from the same bytes; it must not depend on anything else."""
        data = q.encode(heavy(1000), generator(0))
        assert torch.equal(q.decode(data, 1000), q.decode(bytes(bytearray(data)), 1000))

    def test_takes_equal_chance_to_equal_bytes(self, q):
        assert q.encode(heavy(500), generator(9)) == q.encode(heavy(500), generator(9))

    def test_zero_stays_zero(self, q):
        assert not through(q, torch.zeros(70)).any()

    def test_huge_and_tiny_values_stay_finite(self, q):
        """Saturation, not overflow: one exploding coordinate must not send an infinity."""
        x = torch.tensor([3e38, -3e38, 1e-40, -1e-40, 0.0, 1.0]).double() * 10
        decoded = through(q, x)
        assert torch.isfinite(decoded).all()
        assert decoded[0] > 6e4
        assert decoded[1] < -6e4

    def test_refuses_to_send_what_is_not_finite(self, q):
        for bad in (math.nan, math.inf, -math.inf):
            with pytest.raises(ValueError, match="not_finite"):
                q.encode(torch.tensor([1.0, bad]), generator(0))

    def test_does_not_modify_its_input(self, q):
        x = heavy(100)
        before = x.clone()
        through(q, x)
        assert torch.equal(x, before)

    def test_any_other_length_is_an_error(self, q):
        data = q.encode(gaussian(65), generator(0))
        for wrong in (data[:-1], data + b"\0", b""):
            with pytest.raises(ValueError, match="bad_length"):
                q.decode(wrong, 65)

    def test_is_found_by_its_code(self, q):
        assert BY_CODE[q.code] is q


def steps_and_codes(step_bits, *codes):
    return step_bits.to_bytes(2, "little") + bytes(codes)


ONE = 0x3F80  # 1.0 as bfloat16


@pytest.mark.parametrize("q", [Int8(), Int4()])
@pytest.mark.parametrize("bits", [0x7F80, 0x7FC0, 0xFF80, 0xBF80, 0x8000, 0x0001, 0x7F00])
def test_a_step_that_no_encoder_writes_is_refused(q, bits):
    """Infinite, NaN, negative, −0, subnormal, or so large that a product overflows."""
    with pytest.raises(ValueError, match="bad_scale"):
        q.decode(steps_and_codes(bits, 0x77 if q.code == Int4.code else 127), 1)


@pytest.mark.parametrize(
    ("q", "bits", "codes", "count", "reason"),
    [
        (Int4(), ONE, [0x07], 1, None),
        (Int4(), ONE, [0x08], 1, "bad_code"),  # −8
        (Int4(), ONE, [0x17], 1, "bad_padding"),
        (Int4(), ONE, [0x05], 1, "bad_code"),  # the least step gives the largest value code 6 or 7
        (Int4(), 0, [0x01], 1, "bad_code"),  # nothing but zero has step zero
        (Int4(), 0, [0x00], 1, None),
        (Int8(), ONE, [127], 1, None),
        (Int8(), ONE, [128], 1, "bad_code"),  # −128
        (Int8(), ONE, [125], 1, "bad_code"),
        (Int8(), 0, [1], 1, "bad_code"),
    ],
)
def test_codes_that_no_encoder_writes_are_refused(q, bits, codes, count, reason):
    data = steps_and_codes(bits, *codes)
    if reason is None:
        assert q.decode(data, count).numel() == count
    else:
        with pytest.raises(ValueError, match=reason):
            q.decode(data, count)


@pytest.mark.parametrize("q", EXACT)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_floats_from_a_peer_must_be_finite(q, bad):
    layout = {1: torch.float32, 2: torch.float64, 3: torch.float16}[q.code]
    with pytest.raises(ValueError, match="not_finite"):
        q.decode(torch.tensor([bad], dtype=layout).numpy().tobytes(), 1)


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_feedback_conserves_what_went_in(compressor):
    """Σ inputs = Σ outputs + memory after any number of rounds: nothing is lost, only late. (The reference measures 1e-14.)"""
    memory = torch.zeros(300, dtype=torch.float64)
    put_in, came_out = torch.zeros_like(memory), torch.zeros_like(memory)
    for turn in range(30):
        x = gaussian(300, turn, dtype=torch.float64)
        before = x.clone(), memory.clone()
        compressed, following = compress_with_feedback(compressor, x, memory, generator(turn))
        assert torch.equal(x, before[0])
        assert torch.equal(memory, before[1])
        memory = following
        put_in += x
        came_out += compressed
    assert torch.allclose(put_in, came_out + memory, rtol=0, atol=1e-12)


@given(seed=st.integers(0, 2**32), ratio=st.floats(0.01, 1.0))
@settings(max_examples=20, deadline=None)
def test_feedback_of_a_selection_conserves_every_bit(seed, ratio):
    """What is sent is owed no more, what is not sent is owed in full: no rounding at all."""
    x, memory = gaussian(200, seed), gaussian(200, seed, "memory")
    compressed, following = compress_with_feedback(Chain(TopK(ratio), Float32()), x, memory, generator(0))
    assert torch.equal(compressed + following, x + memory)
    assert not (compressed * following).any()


def test_unknown_names_are_config_errors_that_list_the_choices():
    with pytest.raises(ConfigError, match="identity, int4, int8"):
        quantizer("int2", torch.float32)


def test_only_contractions_can_be_chained():
    """An unbiased quantizer with omega >= 1 makes a difference loop diverge."""

    class TooCoarse(Int4):
        omega = 1.07

    with pytest.raises(ValueError, match="omega < 1"):
        Chain(Everything(), TooCoarse())


def test_identity_is_of_float_vectors_only():
    with pytest.raises(ValueError, match="float32 or float64"):
        identity(torch.float16)
