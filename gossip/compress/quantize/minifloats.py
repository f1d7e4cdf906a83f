"""Floats of 8 and 4 bits that share a step, rounded to the nearest.

Shapes: r buckets of B values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from starling.gossip.compress.quantize.buckets import BUCKET, Bucketed
from starling.gossip.compress.quantize.grid import omega_to_nearest


def minifloat(format: str, bucket: int = BUCKET) -> Bucketed:
    """A float of 8 or 4 bits for each value, times a step for each bucket: the largest magnitude gets the largest number.

    An odd function, so antisymmetry survives it. Of the 4-bit formats E2M1 is better for light tails and in buckets of up to 64, E3M0 for
    heavy tails in large buckets. Zero has one code.

    Source: Micikevicius et al. 2022 (arXiv:2209.05433) for 8 bits; Rouhani et al. 2023 (arXiv:2310.10537) for E2M1 in blocks.
    Deviation: the step is the least bfloat16 that does, not a power of two, which would leave up to half of the range unused.

    Args:
        format: fp8_e4m3, fp8_e5m2, fp4_e2m1 or fp4_e3m0.
        bucket: B, values that share a step; 32 to 128 are usual.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    return Bucketed(FORMATS[format], bucket)


@dataclass(frozen=True, slots=True)
class Minifloats:
    """The grid of `minifloat`: codes are the bits of exponent and mantissa, as in any float, below a sign.

    Args:
        code: number on the wire.
        width: bits, with the sign.
        mantissa: bits of it.
        lowest: exponent of the least number with a leading one; smaller ones go on in the same gaps.
        top: the largest code that is a number.
    """

    code: int
    width: int
    mantissa: int
    lowest: int
    top: int
    by_chance: ClassVar[bool] = False

    @property
    def largest(self) -> float:
        """That is L."""
        return self._number(self.top)

    @property
    def least(self) -> float:
        """The least positive number."""
        return self._number(1)

    def omega(self, bucket: int) -> float:
        """See the function."""
        return omega_to_nearest([self._number(code) for code in range(self.top + 1)], bucket)

    def measure(self, magnitude: Tensor, peak: Tensor, length: Tensor | int) -> Tensor:
        """The largest magnitude."""
        return peak

    def codes(self, ratio: Tensor, out: Tensor) -> None:
        """Of two equally near numbers the one with the even mantissa."""
        negative = ratio < 0
        ratio.abs_()
        first = (127 + self.lowest) << 23
        power = (ratio.view(torch.int32) & 0x7F800000).clamp_(min=first)
        mantissa = ratio.div_(power.view(torch.float32)).mul_(2.0**self.mantissa).round_()
        codes = power.sub_(first).bitwise_right_shift_(23 - self.mantissa).add_(mantissa.to(torch.int32))
        negative &= codes > 0
        out.copy_(codes.clamp_(max=self.top).add_(negative, alpha=1 << (self.width - 1)))

    def values(self, codes: Tensor, out: Tensor) -> None:
        """By a table."""
        half = 1 << (self.width - 1)
        numbers = [self._number(code) if code <= self.top else math.nan for code in range(half)]
        table = torch.tensor([*numbers, math.nan, *(-number for number in numbers[1:])], device=codes.device)
        torch.index_select(table, 0, codes.view(-1).view(torch.uint8).to(torch.int32), out=out.view(-1))

    def plausible(self, values: Tensor, peak: Tensor, steps: Tensor) -> Tensor:
        """The least step gives the largest value the largest number; step 0 leaves 0."""
        return peak == torch.where(steps > 0, self.largest, 0.0)

    def _number(self, code: int) -> float:
        exponent, mantissa = code >> self.mantissa, code & ((1 << self.mantissa) - 1)
        leading = (1 << self.mantissa) if exponent else 0
        return float((leading + mantissa) * 2.0 ** (self.lowest - self.mantissa + max(exponent, 1) - 1))


FORMATS: Mapping[str, Minifloats] = MappingProxyType(
    {
        "fp8_e4m3": Minifloats(code=18, width=8, mantissa=3, lowest=-6, top=0x7E),  # up to 448
        "fp8_e5m2": Minifloats(code=19, width=8, mantissa=2, lowest=-14, top=0x7B),  # up to 57344
        "fp4_e2m1": Minifloats(code=20, width=4, mantissa=1, lowest=0, top=7),  # 0, .5, 1, 1.5, 2, 3, 4, 6
        "fp4_e3m0": Minifloats(code=21, width=4, mantissa=0, lowest=-6, top=7),  # 0, 2**−6 … 1
    }
)
