"""A selector: every n-th coordinate, in each exchange the next ones."""

from dataclasses import dataclass

from starling.gossip.compress.support import Full, Indices
from starling.gossip.lazy_torch import torch


@dataclass(frozen=True, slots=True)
class EveryNth:
    ratio: float

    def __post_init__(self):
        if not 0.0 < self.ratio <= 1.0:
            raise ValueError(f"ratio must be in (0, 1], got {self.ratio}")

    def select(self, x, reference, seed, turn):
        n = min(int(1 / self.ratio), x.numel())
        return Full() if n == 1 else Indices(torch.arange((seed + turn) % n, x.numel(), n))

    def contraction(self, dim):
        return 1 / min(int(1 / self.ratio), dim)
