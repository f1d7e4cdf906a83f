"""Grids: the numbers that a bucketed quantizer has, their codes, and a bound of the error.

Shapes: r buckets of B values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from starling.gossip.compress.quantize.steps import ROUNDING, bounds

_SLACK = 1e-3  # relative difference of a bucket's norm by the order of summation


@dataclass(frozen=True, slots=True)
class Grid:
    """Numbers 0 … L with both signs and a code for each. As it is: whole numbers in two's complement, L the bucket's largest value.

    Args:
        code: of the quantizer on the wire, never reused.
        width: bits of a code, in [1, 8].
        numbers: 0 … L, ascending, at most 8 significant bits each.
        by_chance: values are rounded randomly to one of the two numbers around them, which must then be integers.
    """

    code: int
    width: int
    numbers: Sequence[float]
    by_chance: bool = False

    @property
    def largest(self) -> float:
        """Return L, the largest number."""
        return float(self.numbers[-1])

    @property
    def least(self) -> float:
        """The least positive number."""
        return float(self.numbers[1])

    def omega(self, bucket: int) -> float:
        """Bound of the relative squared error with buckets of so many values, the largest of which sets the step.

        To the nearest: the largest value, p steps with p >= L/(1 + 2**−7), is off by at most what the step is too wide; of the B − 1
        others the worst is that all lie in the middle of one gap of the grid.

        By chance: the variance of a value a between 0 and 1 is a − a². The least omega for which
        own + (B − 1)(a − a²) <= omega·(p² + (B − 1)a²) holds for every a is the root of a quadratic; values above 1 add less than that.
        """
        largest, others = self.numbers[-1], bucket - 1
        peak = largest / (1 + ROUNDING)
        if self.by_chance:
            away = min(0.5, largest - peak)
            own = away * (1 - away)
            b = peak**2 - own
            return (-b + math.sqrt(b * b + 4 * peak**2 * (own + others / 4))) / (2 * peak**2)
        own = min(largest - peak, (largest - self.numbers[-2]) / 2) ** 2
        gaps = [(((high - low) / 2) ** 2, ((high + low) / 2) ** 2) for low, high in pairwise(self.numbers)]
        return max(own / peak**2, *((own + others * error) / (peak**2 + others * value) for error, value in gaps))

    def measure(self, magnitude: Tensor, peak: Tensor, length: Tensor | int) -> Tensor:
        """Return the t (r,) of each bucket: its step is the least with L·step >= t.

        `magnitude` (r, B) |x| may be changed, `peak` (r,) is the largest, finite, `length` (r,) or one for all counts values that are no
        padding, >= 1.
        """
        return peak

    def codes(self, ratio: Tensor, out: Tensor) -> None:
        """ratio: (r, B) x/step, may be changed -> `out` (r, B) int8 gets the nearest number's code; L's for what is larger."""
        out.copy_(ratio.round_().clamp_(-self.largest, self.largest))

    def values(self, codes: Tensor, out: Tensor) -> None:
        """codes: (r, B) int8 with any upper bits, may be changed -> `out` (r, B) float32 gets their numbers, NaN for invalid codes."""
        if self.width < 8:
            codes <<= 8 - self.width
            codes >>= 8 - self.width
        out.copy_(codes)

    def plausible(self, values: Tensor, peak: Tensor, steps: Tensor) -> Tensor:
        """Return (r,), whether an encoder could have written numbers (r, B) with these steps (r,): the largest is L or L − 1, or 0 with
        step 0.

        `peak` (r,) is the largest magnitude of each bucket, NaN where one is NaN.
        """
        used = steps > 0
        return (peak >= (self.largest - 1) * used) & (peak <= self.largest * used)


@dataclass(frozen=True, slots=True)
class NormGrid(Grid):
    """Whole numbers 0 … s, where s is the bucket's Euclidean norm."""

    def omega(self, bucket: int) -> float:
        """Tighter than QSGD's min(B/s², √B/s): the least over λ >= 0 of (λ·s² + B/(4(1 + λ)))/s², by duality."""
        s, root = self.largest / (1 + ROUNDING), math.sqrt(bucket)
        return root / s - 1 if 2 * s <= root else (root / (2 * s)) ** 2

    def measure(self, magnitude: Tensor, peak: Tensor, length: Tensor | int) -> Tensor:
        """Return the norm; of shares of the peak, whose squares neither overflow nor vanish."""
        magnitude /= torch.where(peak > 0, peak, 1.0).unsqueeze(1)
        return (peak * magnitude.square_().sum(1).sqrt()).clamp_(max=torch.finfo(peak.dtype).max)

    def plausible(self, values: Tensor, peak: Tensor, steps: Tensor) -> Tensor:
        """A code is less than 1 above |x|/step, and the norm of those is at most s, unless it was cut off; step 0 leaves 0."""
        below = (values.abs() - 1).clamp_(min=0).square_().sum(1)
        in_norm = (below <= self.largest**2 * (1 + _SLACK)) | (steps == bounds(self.least, self.largest)[1])
        return torch.where(steps > 0, in_norm & (peak <= self.largest), peak == 0)


@dataclass(frozen=True, slots=True)
class SignGrid(Grid):
    """The numbers 1 and −1, times the bucket's mean magnitude."""

    def omega(self, bucket: int) -> float:
        """1 − δ: with mean μ and step μ(1 + e) the error is ‖x‖² − Bμ²(1 − e²)."""
        return 1.0 - (1.0 - ROUNDING**2) / bucket

    def measure(self, magnitude: Tensor, peak: Tensor, length: Tensor | int) -> Tensor:
        """Return the mean magnitude; of shares of the peak, whose sum does not overflow."""
        magnitude /= torch.where(peak > 0, peak, 1.0).unsqueeze(1)
        return peak * (magnitude.sum(1) / length)

    def codes(self, ratio: Tensor, out: Tensor) -> None:
        """Write 1 for negative ratios, else 0."""
        torch.lt(ratio, 0.0, out=out)

    def values(self, codes: Tensor, out: Tensor) -> None:
        """Write 1 for code 0, −1 for code 1."""
        out.copy_(codes).mul_(-2.0).add_(1.0)

    def plausible(self, values: Tensor, peak: Tensor, steps: Tensor) -> Tensor:
        """Return whether step 0 has codes 0."""
        return (steps > 0) | (values.amin(1) > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatGrid(Grid):
    """Floats: codes are the bits of exponent and mantissa below a sign; exponents from `lowest` on, below it subnormal numbers."""

    mantissa: int  # bits of it
    lowest: int  # exponent of the smallest normal number

    def codes(self, ratio: Tensor, out: Tensor) -> None:
        """Write the code of the nearest number; of two equally near ones that with the even mantissa."""
        negative = ratio < 0
        ratio.abs_()
        first = (127 + self.lowest) << 23
        power = (ratio.view(torch.int32) & 0x7F800000).clamp_(min=first)
        mantissa = ratio.div_(power.view(torch.float32)).mul_(2.0**self.mantissa).round_()
        codes = power.sub_(first).bitwise_right_shift_(23 - self.mantissa).add_(mantissa.to(torch.int32))
        negative &= codes > 0
        out.copy_(codes.clamp_(max=len(self.numbers) - 1).add_(negative, alpha=1 << (self.width - 1)))

    def values(self, codes: Tensor, out: Tensor) -> None:
        """Look the values up in a table."""
        unused = [math.nan] * ((1 << (self.width - 1)) - len(self.numbers))
        positive, negative = [*self.numbers, *unused], [-number for number in self.numbers[1:]]
        table = torch.tensor([*positive, math.nan, *negative, *unused], device=codes.device)
        torch.index_select(table, 0, codes.view(-1).view(torch.uint8).to(torch.int32), out=out.view(-1))

    def plausible(self, values: Tensor, peak: Tensor, steps: Tensor) -> Tensor:
        """Return the steps by which the largest value gets the largest number; step 0 leaves 0."""
        return peak == torch.where(steps > 0, self.largest, 0.0)


def float_grid(code: int, width: int, mantissa: int, lowest: int, top: int) -> FloatGrid:
    """Return a float format of `width` bits whose largest code that is a number is `top`; other arguments as of `FloatGrid`."""

    def number(code: int) -> float:
        exponent, bits = code >> mantissa, code & ((1 << mantissa) - 1)
        leading = (1 << mantissa) if exponent else 0
        return float((leading + bits) * 2.0 ** (lowest - mantissa + max(exponent, 1) - 1))

    numbers = tuple(number(code) for code in range(top + 1))
    return FloatGrid(code=code, width=width, numbers=numbers, mantissa=mantissa, lowest=lowest)
