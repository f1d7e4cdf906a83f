"""What tells one bucketed quantizer from another: the numbers it has, and how their error is bounded.

Shapes: r buckets of B values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from torch import Tensor

from starling.gossip.compress.quantize.steps import ROUNDING


class Grid(Protocol):
    """Numbers 0 … L with both signs, at most 8 significant bits each, and a code for each of them."""

    @property
    def code(self) -> int:
        """The quantizer's number on the wire, never reused."""
        ...

    @property
    def width(self) -> int:
        """Bits of a code, in [1, 8]."""
        ...

    @property
    def largest(self) -> float:
        """L."""
        ...

    @property
    def least(self) -> float:
        """The least positive number."""
        ...

    @property
    def by_chance(self) -> bool:
        """Whether a value is rounded by chance to one of the two numbers around it, which must then be integers."""
        ...

    def omega(self, bucket: int) -> float:
        """Bound of the relative squared error with buckets of so many values."""
        ...

    def measure(self, magnitude: Tensor, peak: Tensor, length: Tensor | int) -> Tensor:
        """What sets the step of each bucket: t (r,), and the step is the least with L·step >= t.

        Args:
            magnitude: (r, B) |x|, may be changed.
            peak: (r,) the largest of each bucket, finite.
            length: (r,) or one for all: values of a bucket that are no padding, >= 1.
        """
        ...

    def codes(self, ratio: Tensor, out: Tensor) -> None:
        """ratio: (r, B) x/step, may be changed -> `out` (r, B) int8 gets the nearest number's code; L's for what is larger."""
        ...

    def values(self, codes: Tensor, out: Tensor) -> None:
        """codes: (r, B) int8, may be changed -> `out` (r, B) float32 gets their numbers, NaN for what is no code."""
        ...

    def plausible(self, values: Tensor, peak: Tensor, steps: Tensor) -> Tensor:
        """(r,) whether an encoder could have written these numbers with these steps.

        Args:
            values: (r, B) numbers.
            peak: (r,) largest magnitude of each bucket, NaN where one is NaN.
            steps: (r,).
        """
        ...


def omega_to_nearest(numbers: Sequence[float], bucket: int) -> float:
    """Bound of the relative squared error of rounding to the nearest, with the largest magnitude as t.

    Of one bucket: the largest value, p steps with p >= L/(1 + 2**−7), is off by at most what the step is too wide; of the B − 1 others the
    worst is that all lie in the middle of one gap of the grid.

    Args:
        numbers: the grid's, ascending from 0 to L.
        bucket: B.
    """
    largest, others = numbers[-1], bucket - 1
    peak = largest / (1 + ROUNDING)
    own = min(largest - peak, (largest - numbers[-2]) / 2) ** 2
    worst = own / peak**2
    for low, high in pairwise(numbers):
        worst = max(worst, (own + others * ((high - low) / 2) ** 2) / (peak**2 + others * ((high + low) / 2) ** 2))
    return worst


def omega_by_chance(levels: int, bucket: int) -> float:
    """Bound of the relative squared error of rounding by chance to 0, ±1 … ±levels, with the largest magnitude as t.

    As to the nearest, but the variance of a value a between 0 and 1 is a − a². The least omega for which
    own + (B − 1)(a − a²) <= omega·(p² + (B − 1)a²) holds for every a is the root of a quadratic; values above 1 add less than that.
    """
    peak = levels / (1 + ROUNDING)
    away = min(0.5, levels - peak)
    own = away * (1 - away)
    b = peak**2 - own
    return (-b + math.sqrt(b * b + 4 * peak**2 * (own + (bucket - 1) / 4))) / (2 * peak**2)
