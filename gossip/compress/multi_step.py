"""Compression in several steps within one message: each step compresses what those before it left.

Shapes: d parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from starling.gossip.compress.compressor import Compressor
from starling.gossip.lazy_torch import Generator, Tensor, torch


@dataclass(frozen=True, slots=True)
class MultiStep:
    """v_0 = 0, v_r = v_(r−1) + Q(x − v_(r−1)): error (1 − δ)^R for R times the bytes.

    For compressors that round, draw at random or take a subspace. R steps of exact top-k are one top-(R·k) and gain nothing.

    Source: NEOLITHIC, Huang et al. 2022, Algorithm 2 (arXiv:2206.03665).

    Args:
        compressor: Q, of (…, d) if this is to be.
        steps: R >= 1.
    """

    compressor: Compressor
    steps: int

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be >= 1, got {self.steps}")

    def contraction(self, dim: int) -> float:
        """1 − (1 − δ)^R."""
        return 1.0 - (1.0 - self.compressor.contraction(dim)) ** self.steps

    def compress(self, x: Tensor, generator: Generator) -> Tensor:
        """x: (d,) finite -> the sum of R pieces (d,)."""
        sent = torch.zeros_like(x)
        for _ in range(self.steps):
            sent = sent + self.compressor.compress(x - sent, generator)
        return sent
