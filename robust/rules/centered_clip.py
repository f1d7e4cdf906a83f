"""Centered clipping.

Shapes: R rows, k peers, m = k + 1 vectors, D numbers each.
"""

from __future__ import annotations

from dataclasses import dataclass

from starling.gossip.api import Combined
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.api import Context
from starling.robust.rules.distances import HALF, positive, shortened, to_point
from starling.robust.rules.stack import Stack


@dataclass(frozen=True, slots=True)
class CenteredClip:
    """v <- v + (1/m) Σ clip(x_i − v, tau) over all m vectors, a few times, from the result of the round before (at first our own).

    It remembers v, a whole vector. All iterations run on the Gram matrix. What a liar says moves v by at most iterations·tau/m a round.

    Source: Karimireddy, He and Jaggi 2021, "Learning from history" (arXiv:2012.10333).

    Args:
        tau: > 0.
        iterations: >= 1.
    """

    tau: float
    iterations: int = 1

    def __post_init__(self) -> None:
        positive("centered_clip: tau", self.tau)
        if self.iterations < 1:
            raise ValueError(f"centered_clip: iterations must be >= 1, got {self.iterations}")

    def tolerates(self, k: int) -> int:
        """A tenth of the m vectors is proven."""
        return (k + 1) // 10

    def start(self, own: Tensor) -> Tensor:
        """Our own vector."""
        return own.clone()

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), the same again, and who was clipped to less than half in the last iteration."""
        gram = stack.gram(context.kept)
        weights = torch.zeros(gram.shape[:2], dtype=torch.float64, device=gram.device)
        weights[:, -1] = 1.0
        for _ in range(self.iterations):
            factors = shortened(to_point(gram, weights)[:, :-1], self.tau)
            moves = factors / stack.count
            weights = weights * (1 - moves.sum(dim=1, keepdim=True))
            weights[:, :-1] += moves
        center = stack.combination(weights, context.kept)
        return center, center, factors[:, 1:] < HALF
