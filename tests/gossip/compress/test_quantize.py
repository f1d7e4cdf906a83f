"""Every quantizer satisfies the inequality of the convergence proofs, E‖Q(x) − x‖² <= omega·‖x‖².

It also satisfies what antisymmetry (odd, equal bits at both ends) and the wire format (bounded, canonical) need.
"""

import math
import tracemalloc
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.compress import quantize
from starling.gossip.compress.catalogue import QUANTIZERS, quantizer
from starling.gossip.compress.quantize import BUCKET, Int4, Int8, identity, integer, minifloat, qsgd, sign
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from tests.harness.codecs import BY_CODE
from tests.strategies import examples, seeds

FLOATS = {"float32": quantize.Float32(), "float64": quantize.Float64(), "fp16": quantize.Fp16(), "bf16": quantize.Bf16()}
INTEGERS = {name: make() for name, make in QUANTIZERS.items() if name.startswith("int") and "_x" not in name}
NORMS = {name: make() for name, make in QUANTIZERS.items() if name.startswith("qsgd")}
MINIFLOATS = {name: make() for name, make in QUANTIZERS.items() if name.startswith("fp") and name != "fp16"}
BUCKETED = {**INTEGERS, **NORMS, "sign": sign(), **MINIFLOATS}
MULTI_STEP = {name: make() for name, make in QUANTIZERS.items() if "_x" in name}
SPREAD = {name: QUANTIZERS[name]() for name in ("spread1", "spread2")}
ALL = FLOATS | BUCKETED | MULTI_STEP | SPREAD
BY_CHANCE = {name: q for name, q in (BUCKETED | MULTI_STEP).items() if q.draws(1)}
ODD = FLOATS | {name: q for name, q in (BUCKETED | MULTI_STEP | SPREAD).items() if name not in BY_CHANCE}
REENCODES = FLOATS | {"sign": sign()} | MINIFLOATS | SPREAD
magnitudes = st.integers(-90, 100).map(lambda exponent: 2.0**exponent)  # E5M2 has no steps for peaks below 2**-94


def each(catalogue):
    return pytest.mark.parametrize("q", catalogue.values(), ids=catalogue)


def gaussian(count, *labels, dtype=torch.float32):
    return torch.randn(count, generator=generator(0, "values", *labels), dtype=dtype)


def heavy(count, *labels):
    """Return Student-like tails: one value in a bucket dwarfs the others, the worst case for a shared step."""
    return gaussian(count, *labels) / gaussian(count, *labels, "below").abs().clamp_min(1e-3)


def sent(q, values, *labels):
    return q.decode(q.encode(values, generator(1, *labels)), values.numel())


def words(q, rows, seed):
    """Return the random words of `through` for each row, as `encode` draws them from generator(seed, row)."""
    drawn = [torch.randint(2**62, (q.draws(1),), generator=generator(seed, row)) for row in range(rows)]
    return torch.stack(drawn)


def relative_error(q, x, repeats=30):
    """Return the mean of ‖Q(x) − x‖²/‖x‖² over the quantizer's random numbers."""
    rows = x.expand(repeats if q.draws(1) else 1, -1)
    error = q.through(rows, words(q, rows.shape[0], 5)).double() - x.double()
    return float(error.square().sum(1).mean() / x.double().square().sum())


@each(ALL)
class TestEveryQuantizer:
    def test_announces_its_size(self, q):
        for count in (0, 1, 2, 7, 8, 63, 64, 65, 200):
            assert len(q.encode(gaussian(count), generator(0))) == q.size(count)
            assert sent(q, gaussian(count)).numel() == count

    def test_decodes_to_the_same_bits_at_both_ends(self, q):
        """Both ends apply what they decode from the same bytes, independent of alignment and anything else."""
        data = q.encode(heavy(1000), generator(0))
        assert torch.equal(q.decode(data, 1000), q.decode(memoryview(b"x" + data)[1:], 1000))

    def test_equal_random_numbers_give_equal_bytes(self, q):
        assert q.encode(heavy(500), generator(9)) == q.encode(heavy(500), generator(9))

    def test_draws_no_more_than_it_says(self, q):
        """A generator that has encoded one vector has advanced by `draws`, so a simulator can follow."""
        used, expected = generator(3), generator(3)
        q.encode(gaussian(100), used)
        torch.randint(2**62, (q.draws(100),), generator=expected)
        assert torch.equal(used.get_state(), expected.get_state())

    def test_zero_stays_zero(self, q):
        assert not sent(q, torch.zeros(70)).any()

    def test_huge_and_tiny_values_stay_finite(self, q):
        x = torch.tensor([3e38, -3e38, 1e-40, -1e-40, 0.0, 1.0]).double() * 10
        decoded = sent(q, x)
        assert torch.isfinite(decoded).all()
        largest = decoded.abs().max()
        assert largest > 6e4
        assert decoded[0] in (largest, 0.0)  # a coarse one may round it to zero at random
        assert decoded[1] in (-largest, 0.0)

    def test_the_largest_floats_stay_finite(self, q):
        x = torch.full((70,), torch.finfo(torch.float32).max)
        assert torch.isfinite(sent(q, x)).all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_refuses_to_send_non_finite_numbers(self, q, dtype, bad):
        for place in (0, 69):
            x = torch.ones(70, dtype=dtype)
            x[place] = bad
            with pytest.raises(ValueError, match="not_finite"):
                q.encode(x, generator(0))
            with pytest.raises(ValueError, match="not_finite"):
                q.through(x, words(q, 1, 0)[0])

    def test_does_not_modify_its_input(self, q):
        x = heavy(128)
        before = x.clone()
        sent(q, x)
        q.through(x, words(q, 1, 0)[0])
        assert torch.equal(x, before)

    def test_any_other_length_is_an_error(self, q):
        data = q.encode(gaussian(65), generator(0))
        for wrong in (*(data[:end] for end in range(len(data))), data + b"\0"):
            with pytest.raises(ValueError, match="bad_length"):
                q.decode(wrong, 65)
        tracemalloc.start()
        with pytest.raises(ValueError, match="bad_length"):
            q.decode(data, 10**12)
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
        tracemalloc.stop()

    def test_is_found_by_its_code(self, q):
        """Rounding is the sender's choice: a code only says how to decode, so both roundings share it."""
        assert BY_CODE[q.code].size(1000) == q.size(1000)
        data = q.encode(heavy(100), generator(0))
        assert torch.equal(BY_CODE[q.code].decode(data, 100), q.decode(data, 100))

    def test_relative_error_is_within_omega(self, q):
        for draw in (gaussian, heavy):
            assert relative_error(q, draw(640)) <= q.omega


def test_every_name_and_code_is_tested_here():
    assert ALL.keys() == QUANTIZERS.keys() - {"identity"} | {"float32", "float64"}
    assert {q.code for q in ALL.values()} == BY_CODE.keys()


@each(ALL)
@given(seed=seeds, scale=magnitudes, rows=st.integers(1, 4), count=st.integers(1, 200), data=st.data())
@examples(8)
def test_through_equals_encode_and_decode_bit_for_bit(q, seed, scale, rows, count, data):
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    x = torch.randn(rows, count, generator=generator(seed), dtype=dtype) * scale
    together = q.through(x, words(q, rows, seed))
    for row in range(rows):
        assert torch.equal(together[row], q.decode(q.encode(x[row], generator(seed, row)), count))
    assert torch.equal(q.through(x[None], words(q, rows, seed)[None]), together[None])


@pytest.mark.parametrize("name", ["int4", "int3_nearest", "sign", "fp8_e4m3", "fp16"])
def test_long_vectors_are_quantised_like_their_parts(name):
    q = ALL[name]
    x = gaussian((1 << 18) * 2 + 77)
    decoded = sent(q, x)
    rows = x[: 8 * 4096].view(8, 4096) if not q.draws(1) else x[:4096].view(1, 4096)
    assert torch.equal(decoded[: rows.numel()], q.through(rows, words(q, len(rows), 0)).view(-1)) or q.draws(1)
    tail = x[1 << 19 :]
    assert torch.equal(decoded[1 << 19 :], sent(q, tail)) or q.draws(1)
    whole = q.through(x, torch.randint(2**62, (q.draws(1),), generator=generator(1)))
    assert torch.equal(whole, decoded)


@each(INTEGERS | MINIFLOATS)
@given(scale=magnitudes, seed=seeds)
@examples(8)
def test_relative_error_is_the_same_at_every_magnitude(q, scale, seed):
    x = torch.randn(4 * BUCKET, generator=generator(seed))
    assert relative_error(q, x * scale) == pytest.approx(relative_error(q, x), rel=1e-5)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("nearest", [False, True])
@given(data=st.data())
@examples(25)
def test_omega_of_integers_bounds_the_worst_case(bits, nearest, data):
    """The worst bucket has one large value and all others where rounding is worst, anywhere within a step."""
    q = integer(bits, nearest)
    peak = data.draw(st.floats(0.5, 1.0))
    others = data.draw(st.floats(0.0, 1.0))
    x = torch.full((BUCKET,), others * peak / q.grid.largest)
    x[data.draw(st.integers(0, BUCKET - 1))] = peak
    slack = 1.3 if q.draws(1) else 1 + 1e-6  # the mean of 300 draws is not yet the expectation
    assert relative_error(q, x, repeats=300) <= q.omega * slack


def test_omega_of_integers_is_nearly_reached():
    """A bound far above the truth would make every step size derived from it too small."""
    for bits in (2, 3, 4):
        for nearest in (False, True):
            q = integer(bits, nearest)
            worst = 0.0
            for others in torch.linspace(0.02, 0.6, 30):
                x = torch.full((BUCKET,), float(others) / q.grid.largest)
                x[0] = 1.0
                worst = max(worst, relative_error(q, x, repeats=300))
            assert worst > 0.9 * q.omega


@pytest.mark.parametrize("levels", [1, 3, 7, 15, 31, 127])
@given(seed=seeds, zeros=st.integers(0, BUCKET - 1))
@examples(15)
def test_omega_of_qsgd_bounds_flat_and_sparse_buckets(levels, seed, zeros):
    """All magnitudes equal is the worst case, and every vector in between."""
    q = qsgd(levels)
    x = torch.ones(BUCKET) + 0.1 * torch.randn(BUCKET, generator=generator(seed))
    x[:zeros] = 0.0
    assert relative_error(q, x, repeats=300) <= q.omega * 1.3


@pytest.mark.parametrize("levels", [1, 3, 7, 15, 31, 127])
def test_omega_of_qsgd_is_within_the_papers(levels):
    """min(B/s², √B/s), except for the step's rounding."""
    for bucket in (64, 128, 512):
        assert qsgd(levels, bucket).omega <= min(bucket / levels**2, math.sqrt(bucket) / levels) * (1 + 2**-7) ** 2


@each({"sign": sign()} | MINIFLOATS | {"int2_nearest": integer(2, nearest=True)})
@given(seed=seeds, power=st.floats(0.2, 30.0))
@examples(20)
def test_omega_holds_for_every_vector_without_random_rounding(q, seed, power):
    """From nearly equal magnitudes to one that dwarfs the others."""
    x = torch.randn(3 * BUCKET, generator=generator(seed), dtype=torch.float64)
    x = (x.sign() * x.abs() ** power).float().clamp(-1e30, 1e30)
    assert relative_error(q, x) <= q.omega


@each({name: q for name, q in BY_CHANCE.items() if name in BUCKETED})
def test_random_rounding_is_unbiased(q):
    x = heavy(3 * BUCKET + 5)
    draws = 2000
    mean = q.through(x.expand(draws, -1), torch.randint(2**62, (draws, 1), generator=generator(3))).double().mean(0)
    padded = torch.nn.functional.pad(x, (0, BUCKET - 5)).view(-1, BUCKET)
    reach = padded.norm(dim=1) if q in NORMS.values() else padded.abs().amax(1)
    step = (reach / q.grid.largest * (1 + 2**-7)).repeat_interleave(BUCKET)[: x.numel()]
    assert ((mean - x).abs() <= 5 * step / (2 * math.sqrt(draws))).all()


def test_random_numbers_of_adjacent_values_rows_and_words_are_independent():
    """One word serves all numbers of a vector: they must be independent, or errors would add up instead of cancelling."""
    q = integer(2)
    x = torch.full((64 * 40,), 0.5)
    x[::BUCKET] = 1.0  # the largest of each bucket; all others are rounded up or down with equal chance
    up = q.through(x.expand(500, -1), torch.arange(500)[:, None]).view(500, 40, BUCKET)[:, :, 1:].reshape(500, -1) - 0.5
    pairs = torch.cat([(up[:, lag:] * up[:, :-lag]).mean(0) for lag in (1, 2, 4, 16, 63, 252)] + [(up[1:] * up[:-1]).mean(0)])
    spread = 0.25 / math.sqrt(500)
    assert abs(float(pairs.mean())) < 5 * spread / math.sqrt(pairs.numel())
    assert float(pairs.std()) == pytest.approx(spread, rel=0.05)


@each(INTEGERS)
@given(seed=seeds, scale=magnitudes, count=st.integers(1, 200))
@examples(15)
def test_each_value_becomes_one_of_its_two_neighbouring_multiples_of_the_step(q, seed, scale, count):
    """So an exchange moves no coordinate past its bucket's largest one by more than the step's rounding."""
    x = torch.randn(count, generator=generator(seed)) * scale
    decoded = sent(q, x, seed)
    peak = torch.nn.functional.pad(x.abs(), (0, -count % BUCKET)).view(-1, BUCKET).amax(1)
    step = (peak.double() / q.grid.largest * (1 + 2**-7)).repeat_interleave(BUCKET)[:count]
    assert ((decoded.double() - x.double()).abs() < step).all()


@each(INTEGERS)
def test_multiples_of_the_step_are_never_rounded_away(q):
    """Every dither is strictly within ± 1/2."""
    levels = int(q.grid.largest)
    x = torch.arange(BUCKET * 200).float() % (2 * levels + 1) - levels
    x[::BUCKET] = levels
    for seed in range(3):
        assert torch.equal(sent(q, x, seed), x)


@each(ODD)
@given(seed=seeds, scale=magnitudes)
@examples(8)
def test_rounding_to_the_nearest_is_odd(q, seed, scale):
    x = torch.randn(150, generator=generator(seed)) * scale
    assert torch.equal(sent(q, -x), -sent(q, x))


@each(REENCODES)
@given(seed=seeds, count=st.integers(0, 150), scale=magnitudes)
@examples(8)
def test_decoded_values_reencode_to_the_same_bytes(q, seed, count, scale):
    data = q.encode(torch.randn(count, generator=generator(seed), dtype=torch.float64) * scale, generator(0))
    assert q.encode(q.decode(data, count), generator(0)) == data


@each(MINIFLOATS)
def test_minifloats_round_to_the_nearest_of_all_their_numbers(q):
    """The magnitudes of the published formats, and rounding as for any float."""
    if q.code < 20:
        layout = torch.float8_e4m3fn if q.code == 18 else torch.float8_e5m2
        numbers = torch.arange(len(q.grid.numbers), dtype=torch.uint8).view(layout).float()
    else:
        numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6] if q.code == 20 else [0, *(2.0**e for e in range(-6, 1))], dtype=torch.float32)
    for low, high in pairwise(numbers):
        for share in (0.0, 0.49, 0.51, 1.0):
            x = torch.zeros(BUCKET)
            x[0], x[1], x[2] = numbers[-1], low + share * (high - low), -(low + share * (high - low))
            nearest = low if share < 0.5 else high
            assert torch.equal(sent(q, x)[1:3], torch.stack([nearest, -nearest]))


def test_sign_sends_the_mean_magnitude_of_each_bucket():
    """A short last bucket is averaged over its own values; 4/3 as a bfloat16, rounded up, is 171/128."""
    x = torch.cat([torch.full((BUCKET,), 2.0), torch.tensor([1.0, -3.0, 0.0])])
    assert torch.equal(sent(sign(), x)[-3:], torch.tensor([171.0, -171.0, 171.0]) / 128)


def test_signs_of_selected_values_share_a_magnitude_in_larger_buckets():
    """For about the selected values of a chunk of 4,096 at 5 %, at one bit each plus two bytes."""
    spread1 = QUANTIZERS["spread1"]()
    x = torch.cat([torch.tensor([2.0, -4.0]).repeat(128), torch.tensor([-5.0])])
    assert torch.equal(sent(spread1, x), torch.cat([torch.tensor([3.0, -3.0]).repeat(128), torch.tensor([-5.0])]))
    assert spread1.size(256) == 2 + 32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identity_changes_no_bit(dtype):
    x = gaussian(1000, dtype=dtype)
    decoded = sent(identity(dtype), x)
    assert decoded.dtype == dtype
    assert torch.equal(decoded, x)


def bytes_of(step_bits, *codes):
    return step_bits.to_bytes(2, "little") + bytes(codes)


ONE = 0x3F80  # 1.0 as bfloat16


@each(BUCKETED)
@pytest.mark.parametrize("bits", [0x7F80, 0x7FC0, 0xFF80, 0xBF80, 0x8000, 0x0001, 0x7F00])
def test_a_step_that_no_encoder_writes_is_refused(q, bits):
    """Infinite, NaN, negative, −0, subnormal, or so large that a product overflows."""
    data = bytes_of(bits) + q.encode(torch.ones(1), generator(0))[2:]
    with pytest.raises(ValueError, match="bad_scale"):
        q.decode(data, 1)


@each(BUCKETED)
def test_the_extreme_steps_give_normal_finite_numbers(q):
    """No decoded value depends on how a device treats subnormals."""
    for scale in (1e-45, 1e-38, 1e-37, 1e-35, 1e-30, 1e37, 3e38):
        decoded = sent(q, gaussian(200).clamp(-1, 1) * scale).abs()
        assert torch.isfinite(decoded).all()
        assert ((decoded == 0) | (decoded >= torch.finfo(torch.float32).tiny)).all()


@pytest.mark.parametrize(
    ("q", "bits", "codes", "reason"),
    [
        (Int4(), ONE, [0x07], None),
        (Int4(), ONE, [0x08], "bad_code"),  # −8
        (Int4(), ONE, [0x17], "bad_padding"),
        (Int4(), ONE, [0x05], "bad_code"),  # the least step gives the largest value code 6 or 7
        (Int4(), 0, [0x01], "bad_code"),  # only zero has step zero
        (Int4(), 0, [0x00], None),
        (Int8(), ONE, [127], None),
        (Int8(), ONE, [128], "bad_code"),  # −128
        (Int8(), ONE, [125], "bad_code"),
        (Int8(), 0, [1], "bad_code"),
        (integer(2), ONE, [0b11], None),
        (integer(2), ONE, [0b00], None),  # by chance
        (integer(2), ONE, [0b10], "bad_code"),  # −2
        (integer(2), ONE, [0b101], "bad_padding"),
        (integer(3), ONE, [0b100], "bad_code"),
        (integer(3), ONE, [0b001], "bad_code"),
        (integer(3), ONE, [0b1000], "bad_padding"),
        (integer(6), ONE, [0b100000], "bad_code"),
        (qsgd(7), ONE, [0x07], None),
        (qsgd(7), ONE, [0x08], "bad_code"),
        (qsgd(7), 0, [0x01], "bad_code"),
        (sign(), ONE, [1], None),
        (sign(), ONE, [2], "bad_padding"),
        (sign(), 0, [1], "bad_code"),
        (minifloat("fp8_e4m3"), ONE, [0x7E], None),
        (minifloat("fp8_e4m3"), ONE, [0x7F], "bad_code"),  # NaN
        (minifloat("fp8_e4m3"), ONE, [0x7D], "bad_code"),  # the largest value gets the largest number
        (minifloat("fp8_e5m2"), ONE, [0x7C], "bad_code"),  # infinity
        (minifloat("fp4_e2m1"), ONE, [0x0F], None),
        (minifloat("fp4_e2m1"), ONE, [0x08], "bad_code"),  # −0
        (minifloat("fp4_e2m1"), 0, [0x08], "bad_code"),
        (minifloat("fp4_e3m0"), ONE, [0x06], "bad_code"),
        (minifloat("fp8_e4m3"), ONE, [0x7E, 0x80], "bad_code"),  # −0 beside another value: a second encoding
    ],
)
def test_codes_that_no_encoder_writes_are_refused(q, bits, codes, reason):
    data = bytes_of(bits, *codes)
    if reason is None:
        assert q.decode(data, len(codes)).numel() == 1
    else:
        with pytest.raises(ValueError, match=f"^{reason}$"):
            q.decode(data, len(codes))


def test_a_bucket_longer_than_its_norm_is_refused():
    """64 codes of 7 with a norm of 7 steps: a liar would move eight times what the norm allows."""
    with pytest.raises(ValueError, match="bad_code"):
        qsgd(7).decode(bytes_of(ONE, *[0x77] * 32), BUCKET)


@each(FLOATS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_floats_from_a_peer_must_be_finite(q, bad):
    x = torch.ones(300, dtype=q.layout)
    x[200] = bad
    with pytest.raises(ValueError, match="not_finite"):
        q.decode(x.view(torch.uint8).numpy().tobytes(), 300)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: integer(7), "bits must be one of 2, 3, 4, 5, 6, 8, got 7"),
        (lambda: qsgd(4), "levels must be one of 1, 3, 7, 15, 31, 127, got 4"),
        (lambda: minifloat("fp4_e1m2"), "format must be one of fp8_e4m3, .* got 'fp4_e1m2'"),
        (lambda: sign(bucket=12), r"bucket must be a multiple of 8 in \[8, 4096\], got 12"),
        (lambda: Int4(bucket=8192), "bucket must be .* got 8192"),
        (lambda: identity(torch.float16), "float32 or float64"),
    ],
)
def test_impossible_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_unknown_names_are_config_errors_that_list_the_choices():
    with pytest.raises(ConfigError, match=r"bf16.*identity, int2.*sign"):
        quantizer("int7", torch.float32)
