"""Many vectors side by side, each compressed on its own.

Shapes: n vectors, d parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from starling.gossip.compress.compressor import Compressor
from starling.gossip.lazy_torch import Generator, Tensor, torch


@dataclass(frozen=True, slots=True)
class Rows:
    """A compressor of vectors (d,) as one of (…, d).

    Rows draw from the generator in turn, so the result of one depends on those before it where the compressor uses chance.
    """

    compressor: Compressor

    def contraction(self, dim: int) -> float:
        """δ, that of each row."""
        return self.compressor.contraction(dim)

    def compress(self, x: Tensor, generator: Generator) -> Tensor:
        """x: (…, d) finite -> Q of each row (…, d)."""
        rows = x.reshape(-1, x.shape[-1])
        if rows.shape[0] == 0:
            return torch.zeros_like(x)
        return torch.stack([self.compressor.compress(row, generator) for row in rows]).view_as(x)
