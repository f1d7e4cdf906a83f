"""Bucketed quantizers by kind: whole numbers of the largest value or of the norm, signs, and tiny floats."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from starling.gossip.compress.quantize.buckets import BUCKET, Bucket, Bucketed
from starling.gossip.compress.quantize.grid import FloatGrid, Grid, NormGrid, SignGrid, float_grid
from starling.gossip.compress.quantize.multi_step import MultiStep
from starling.gossip.compress.quantize.spread import BUCKET_OF_KEPT

_MAX_CODES: Mapping[int, int] = MappingProxyType({2: 7, 3: 8, 4: 5, 5: 9, 6: 10, 8: 4})  # bits -> number on the wire
_NORM_CODES: Mapping[int, int] = MappingProxyType({1: 11, 3: 12, 7: 13, 15: 14, 31: 15, 127: 16})  # levels -> likewise
_SIGN = SignGrid(17, 1, range(2))
_SPREAD = SignGrid(23, 1, range(2))
_FORMATS: Mapping[str, FloatGrid] = MappingProxyType(
    {
        "fp8_e4m3": float_grid(18, 8, mantissa=3, lowest=-6, top=0x7E),  # up to 448
        "fp8_e5m2": float_grid(19, 8, mantissa=2, lowest=-14, top=0x7B),  # up to 57344
        "fp4_e2m1": float_grid(20, 4, mantissa=1, lowest=0, top=7),  # 0, .5, 1, 1.5, 2, 3, 4, 6
        "fp4_e3m0": float_grid(21, 4, mantissa=0, lowest=-6, top=7),  # 0, 2**−6 … 1
    }
)


def integer(bits: int, nearest: bool = False, bucket: Bucket = BUCKET) -> Bucketed:
    """Codes −L … L of b bits, L = 2**(b−1) − 1; a bucket's step is its largest magnitude over L.

    By chance: unbiased, and a contraction in expectation for b >= 3 and buckets of up to 64. To the nearest: biased, a contraction of every
    vector, half the squared error, and an odd function, so antisymmetry survives it. Both write the same format.

    Args:
        bits: b, one of 2, 3, 4, 5, 6, 8.
        nearest: round to the nearest instead of by chance.
        bucket: B, values that share a step.
    """
    if bits not in _MAX_CODES:
        raise ValueError(f"bits must be one of {', '.join(map(str, _MAX_CODES))}, got {bits}")
    return Bucketed(Grid(_MAX_CODES[bits], bits, range(1 << (bits - 1)), not nearest), bucket)


def qsgd(levels: int, bucket: Bucket = BUCKET) -> Bucketed:
    """Levels 0 … s of the bucket's Euclidean norm, rounded randomly: unbiased, with more codes 0 than `integer` has.

    Its error grows with √B/s: a contraction only for s > √B/2. Without the paper's entropy code, which pays where s is far below √B.

    Source: Alistarh et al. 2017, Section 3.1 (arXiv:1610.02132).

    Args:
        levels: s, one of 1, 3, 7, 15, 31, 127: as many as 2, 3, 4, 5, 6, 8 bits hold.
        bucket: B, values that share a norm.
    """
    if levels not in _NORM_CODES:
        raise ValueError(f"levels must be one of {', '.join(map(str, _NORM_CODES))}, got {levels}")
    return Bucketed(NormGrid(_NORM_CODES[levels], levels.bit_length() + 1, range(levels + 1), by_chance=True), bucket)


def sign(bucket: Bucket = BUCKET) -> Bucketed:
    """Encode one bit per value: its sign, times the mean magnitude ‖x‖₁/B of its bucket. Zeros count as positive unless all are 0.

    Contraction: δ = ‖x‖₁²/(B·‖x‖₂²) >= 1/B for every vector, less a 2**−14th for the step's rounding; 2/π of Gaussian values.
    Biased: use it with error feedback.

    Source: Karimireddy et al. 2019, Algorithm 2 (arXiv:1901.09847); per bucket instead of per layer.

    Args:
        bucket: B, values that share a magnitude.
    """
    return Bucketed(_SIGN, bucket)


def spread1(bucket: Bucket = BUCKET_OF_KEPT) -> Bucketed:
    """Encode one bit per value: its sign, times the mean magnitude of its bucket; `sign` for selected values.

    Those are many in a bucket, of much the same magnitude: half of what `spread2` takes, so twice as many can be sent in as many bytes but
    for their places.

    Source: as of `sign`; of kept values Sarfi et al. 2025, SparseLoCo (arXiv:2508.15706), which has two bits.

    Args:
        bucket: B, values that share a magnitude.
    """
    return Bucketed(_SPREAD, bucket)


def minifloat(format: str, bucket: Bucket = BUCKET) -> Bucketed:
    """Return a float of 8 or 4 bits for each value, times a step for each bucket: the largest magnitude gets the largest number.

    To the nearest: an odd function, so antisymmetry survives it. Of the 4-bit formats E2M1 is better for light tails and in buckets of up
    to 64, E3M0 for heavy tails in large buckets. Zero has one code.

    Source: Micikevicius et al. 2022 (arXiv:2209.05433) for 8 bits; Rouhani et al. 2023 (arXiv:2310.10537) for E2M1 in blocks.
    Deviation: the step is the least bfloat16 that does, not a power of two, which would leave up to half of the range unused.

    Args:
        format: fp8_e4m3, fp8_e5m2, fp4_e2m1 or fp4_e3m0.
        bucket: B, values that share a step; 32 to 128 are usual.
    """
    if format not in _FORMATS:
        raise ValueError(f"format must be one of {', '.join(_FORMATS)}, got {format!r}")
    return Bucketed(_FORMATS[format], bucket)


def multi_step(of: str, steps: int) -> MultiStep:
    """`MultiStep` of one of sign, int2_nearest, int3, int4."""
    return MultiStep(_STEPS[of](), steps)


Int8 = partial(integer, 8)
Int4 = partial(integer, 4)
_STEPS: Mapping[str, Callable[[], Bucketed]] = MappingProxyType(
    {"sign": sign, "int2_nearest": partial(integer, 2, nearest=True), "int3": partial(integer, 3), "int4": Int4}
)
