"""Nearest-neighbor mixing: before a rule, every vector is averaged with those nearest to it. Linear and never stored: `Stack.mixed`.

Shapes: R rows, k peers, m = k + 1 vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from starling.gossip.lazy_torch import Tensor
from starling.robust.rules.api import Combination, bad, enough, nothing
from starling.robust.rules.distances import between, nearest
from starling.robust.rules.stack import Stack


@dataclass(frozen=True, slots=True)
class Nnm:
    """Nearest neighbor mixing: every vector becomes the mean of the m − b nearest to it, itself included.

    Source: Allouah et al. 2023, "Fixing by mixing" (arXiv:2302.01772).

    Args:
        b: >= 0.
    """

    b: int

    def __post_init__(self) -> None:
        bad("nnm", self.b)

    def tolerates(self, rule: Combination, k: int) -> int:
        """Its own b, of m >= 2b + 1, and what the rule does."""
        return min(self.b, rule.tolerates(k)) if k >= 2 * self.b else 0

    def start(self, own: Tensor) -> Tensor:
        """Nothing."""
        return nothing(own)

    def prepare(self, stack: Stack, kept: Tensor) -> tuple[Stack, Tensor]:
        """Mixed, and nothing."""
        enough("nnm", self.b, stack.count, 2 * self.b + 1)
        return stack.mixed(neighborly(between(stack.gram()), self.b)), kept


def neighborly(distances: Tensor, b: int) -> Tensor:
    """(R, m, m) the mixing that makes each vector the mean of its m − b nearest, itself included.

    Args:
        distances: (R, m, m) from each vector, or what orders them alike; those to itself do not count.
        b: in [0, m).
    """
    distances = distances.clone()
    distances.diagonal(dim1=1, dim2=2).fill_(-1.0)  # itself comes first, even if others are equal to it
    count = distances.shape[1] - b
    return nearest(distances, count).double() / count
