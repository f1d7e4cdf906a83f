"""Integer codes: multiples of a bucket's step, rounded by chance or to the nearest.

Shapes: r buckets of B values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from starling.gossip.compress.quantize.buckets import BUCKET, Bucketed
from starling.gossip.compress.quantize.grid import omega_by_chance, omega_to_nearest
from starling.gossip.compress.quantize.steps import ROUNDING, bounds

_MAX_CODES: Mapping[int, int] = MappingProxyType({2: 7, 3: 8, 4: 5, 5: 9, 6: 10, 8: 4})  # bits -> number on the wire
_NORM_CODES: Mapping[int, int] = MappingProxyType({2: 11, 3: 12, 4: 13, 5: 14, 6: 15, 8: 16})
_SLACK = 1e-3  # by which the norm of a bucket may differ for the order in which it was summed


def integer(bits: int, nearest: bool = False, bucket: int = BUCKET) -> Bucketed:
    """Codes −L … L of b bits, L = 2**(b−1) − 1; a bucket's step is its largest magnitude over L.

    By chance: unbiased, and a contraction in expectation for b >= 3 and buckets of up to 64. To the nearest: biased, a contraction of every
    vector, half the squared error, and an odd function, so antisymmetry survives it. Both write the same format.

    Args:
        bits: b, one of 2, 3, 4, 5, 6, 8.
        nearest: round to the nearest instead of by chance.
        bucket: B, values that share a step.
    """
    return Bucketed(MaxIntegers(bits, nearest), bucket)


def qsgd(levels: int, bucket: int = BUCKET) -> Bucketed:
    """Levels 0 … s of the bucket's Euclidean norm, rounded by chance: unbiased, with more codes 0 than `integer` has.

    Its error grows with √B/s: a contraction only for s > √B/2. Without the paper's entropy code, which pays where s is far below √B.

    Source: Alistarh et al. 2017, Section 3.1 (arXiv:1610.02132).

    Args:
        levels: s, one of 1, 3, 7, 15, 31, 127: as many as 2, 3, 4, 5, 6, 8 bits hold.
        bucket: B, values that share a norm.
    """
    return Bucketed(NormIntegers(levels), bucket)


Int8 = partial(integer, 8)
Int4 = partial(integer, 4)


@dataclass(frozen=True, slots=True)
class MaxIntegers:
    """The grid of `integer`."""

    width: int
    nearest: bool
    least: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if self.width not in _MAX_CODES:
            raise ValueError(f"bits must be one of {', '.join(map(str, _MAX_CODES))}, got {self.width}")

    @property
    def code(self) -> int:
        """One for both roundings."""
        return _MAX_CODES[self.width]

    @property
    def largest(self) -> float:
        """That is L."""
        return float(_levels(self.width))

    @property
    def by_chance(self) -> bool:
        """As asked for."""
        return not self.nearest

    def omega(self, bucket: int) -> float:
        """See the functions."""
        levels = _levels(self.width)
        return omega_to_nearest(range(levels + 1), bucket) if self.nearest else omega_by_chance(levels, bucket)

    def measure(self, magnitude: Tensor, peak: Tensor, length: Tensor | int) -> Tensor:
        """The largest magnitude."""
        return peak

    def codes(self, ratio: Tensor, out: Tensor) -> None:
        """Rounded; of two equally near ones the even."""
        _round(ratio, self.largest, out)

    def values(self, codes: Tensor, out: Tensor) -> None:
        """Two's complement."""
        _extend(codes, self.width, out)

    def plausible(self, values: Tensor, peak: Tensor, steps: Tensor) -> Tensor:
        """The least step leaves the largest value no code but L or L − 1; step 0 leaves 0."""
        used = steps > 0
        return (peak >= (self.largest - 1) * used) & (peak <= self.largest * used)


@dataclass(frozen=True, slots=True)
class NormIntegers:
    """The grid of `qsgd`."""

    levels: int
    least: ClassVar[float] = 1.0
    by_chance: ClassVar[bool] = True

    def __post_init__(self) -> None:
        allowed = [_levels(bits) for bits in _NORM_CODES]
        if self.levels not in allowed:
            raise ValueError(f"levels must be one of {', '.join(map(str, allowed))}, got {self.levels}")

    @property
    def code(self) -> int:
        """One for each number of bits."""
        return _NORM_CODES[self.width]

    @property
    def width(self) -> int:
        """Bits that −s … s take."""
        return self.levels.bit_length() + 1

    @property
    def largest(self) -> float:
        """That is s."""
        return float(self.levels)

    def omega(self, bucket: int) -> float:
        """Tighter than the paper's min(B/s², √B/s): the least over λ >= 0 of (λ·s² + B/(4(1 + λ)))/s², by duality."""
        s, root = self.levels / (1 + ROUNDING), math.sqrt(bucket)
        return root / s - 1 if 2 * s <= root else (root / (2 * s)) ** 2

    def measure(self, magnitude: Tensor, peak: Tensor, length: Tensor | int) -> Tensor:
        """The norm; of shares of the peak, whose squares neither overflow nor vanish."""
        magnitude /= torch.where(peak > 0, peak, 1.0).unsqueeze(1)
        return (peak * magnitude.square_().sum(1).sqrt()).clamp_(max=torch.finfo(peak.dtype).max)

    def codes(self, ratio: Tensor, out: Tensor) -> None:
        """Rounded."""
        _round(ratio, self.largest, out)

    def values(self, codes: Tensor, out: Tensor) -> None:
        """Two's complement."""
        _extend(codes, self.width, out)

    def plausible(self, values: Tensor, peak: Tensor, steps: Tensor) -> Tensor:
        """A code is less than 1 above |x|/step, and the norm of those is at most s, unless it was cut off; step 0 leaves 0."""
        below = (values.abs() - 1).clamp_(min=0).square_().sum(1)
        in_norm = (below <= self.largest**2 * (1 + _SLACK)) | (steps == bounds(self.least, self.largest)[1])
        return torch.where(steps > 0, in_norm & (peak <= self.largest), peak == 0)


def _levels(bits: int) -> int:
    return (1 << (bits - 1)) - 1


def _round(ratio: Tensor, largest: float, out: Tensor) -> None:
    out.copy_(ratio.round_().clamp_(-largest, largest))


def _extend(codes: Tensor, bits: int, out: Tensor) -> None:
    """Numbers of two's complement codes, whatever their upper bits."""
    if bits < 8:
        codes <<= 8 - bits
        codes >>= 8 - bits
    out.copy_(codes)
