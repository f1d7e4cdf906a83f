"""The geometric median.

Shapes: R rows, m vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from starling.gossip.api import Combined
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.api import Context, nothing
from starling.robust.rules.distances import positive, to_point
from starling.robust.rules.stack import Stack

_TINY = 1e-140  # where all are at one point any weights will do, but no division by 0


@dataclass(frozen=True, slots=True)
class GeometricMedian:
    """The point of least sum of distances to the m vectors, by the smoothed Weiszfeld iteration z <- Σ x_i/s_i / Σ 1/s_i with
    s_i = max(ν, ‖x_i − z‖).

    It begins at the mean in which those farther from our own vector than the median count less in proportion: from the plain mean a
    minority far away costs many steps, and from our own, which is one of the x_i, it would hardly start. The iteration needs products
    of vectors only, so it runs on the Gram matrix: two passes over the vectors, however many steps. ν is relative, so that vectors near
    to each other are not all within it, which would make this the mean.

    Source: Pillutla, Kakade and Harchaoui 2019, RFA (arXiv:1912.13445).

    Args:
        nu: ν over the median distance from our own vector, > 0.
        iterations: steps, >= 1.
    """

    nu: float = 1e-6
    iterations: int = 64

    def __post_init__(self) -> None:
        positive("geometric_median: nu", self.nu)
        if self.iterations < 1:
            raise ValueError(f"geometric_median: iterations must be >= 1, got {self.iterations}")

    def tolerates(self, k: int) -> int:
        """Fewer than half of the m vectors."""
        return k // 2

    def start(self, own: Tensor) -> Tensor:
        """Nothing."""
        return nothing(own)

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), and nothing."""
        gram = stack.gram()
        away = gram.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
        spread = away[:, 1:].median(dim=1, keepdim=True).values.clamp_min(_TINY)
        pulls = 1 / torch.maximum(away, spread)
        for _ in range(self.iterations):
            weights = pulls / pulls.sum(dim=1, keepdim=True)
            pulls = 1 / torch.maximum(to_point(gram, weights), self.nu * spread)
        weights = pulls / pulls.sum(dim=1, keepdim=True)
        return stack.combination(weights), context.kept, None
