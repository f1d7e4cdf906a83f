"""One bit a value: its sign, and the mean magnitude of its bucket.

Shapes: r buckets of B values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from starling.gossip.compress.quantize.buckets import BUCKET, Bucketed
from starling.gossip.compress.quantize.steps import ROUNDING


def sign(bucket: int = BUCKET) -> Bucketed:
    """One bit a value: its sign, times the mean magnitude ‖x‖₁/B of its bucket. Zeros count as positive unless all of the bucket is 0.

    Contraction: δ = ‖x‖₁²/(B·‖x‖₂²) >= 1/B for every vector, less a 2**−14th for the step's rounding; 2/π of Gaussian values.
    Biased: use it with error feedback.

    Source: Karimireddy et al. 2019, Algorithm 2 (arXiv:1901.09847); per bucket instead of per layer.

    Args:
        bucket: B, values that share a magnitude.
    """
    return Bucketed(Signs(), bucket)


@dataclass(frozen=True, slots=True)
class Signs:
    """The grid of `sign`: 1 and −1."""

    code: ClassVar[int] = 17
    width: ClassVar[int] = 1
    largest: ClassVar[float] = 1.0
    least: ClassVar[float] = 1.0
    by_chance: ClassVar[bool] = False

    def omega(self, bucket: int) -> float:
        """1 − δ: with mean μ and step μ(1 + e) the error is ‖x‖² − Bμ²(1 − e²)."""
        return 1.0 - (1.0 - ROUNDING**2) / bucket

    def measure(self, magnitude: Tensor, peak: Tensor, length: Tensor | int) -> Tensor:
        """The mean magnitude; of shares of the peak, whose sum does not overflow."""
        magnitude /= torch.where(peak > 0, peak, 1.0).unsqueeze(1)
        return peak * (magnitude.sum(1) / length)

    def codes(self, ratio: Tensor, out: Tensor) -> None:
        """1 where negative."""
        torch.lt(ratio, 0.0, out=out)

    def values(self, codes: Tensor, out: Tensor) -> None:
        """0 -> 1, 1 -> −1."""
        out.copy_(codes).mul_(-2.0).add_(1.0)

    def plausible(self, values: Tensor, peak: Tensor, steps: Tensor) -> Tensor:
        """Step 0 has codes 0."""
        return (steps > 0) | (values.amin(1) > 0)
