"""Krum, multi-Krum and Bulyan: vectors that have the most company.

A vector's score is the sum of the squared distances to its m − b − 2 nearest others, as in the paper (some libraries take one more). Of
equal scores the lower index wins; our own vector is the first, peers follow in order of their ids.

Shapes: R rows, m vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from starling.gossip.api import Combined
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.api import Context, bad, enough, nothing
from starling.robust.rules.coordinate import mean_around_median
from starling.robust.rules.distances import between, nearest
from starling.robust.rules.stack import Stack


@dataclass(frozen=True, slots=True)
class Krum:
    """The vector of lowest score. With data that differ from node to node that is little better than learning alone.

    Source: Blanchard et al. 2017, "Machine learning with adversaries" (arXiv:1703.02757).

    Args:
        b: >= 0.
    """

    b: int

    def __post_init__(self) -> None:
        bad("krum", self.b)

    def tolerates(self, k: int) -> int:
        """b, of m >= 2b + 3."""
        return self.b if k >= 2 * self.b + 2 else 0

    def start(self, own: Tensor) -> Tensor:
        """Nothing."""
        return nothing(own)

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), and nothing."""
        enough("krum", self.b, stack.count, self.b + 2)
        chosen = nearest(scores(between(stack.gram()), self.b), 1)
        return stack.combination(chosen.double()), context.kept, None


@dataclass(frozen=True, slots=True)
class MultiKrum:
    """The mean of the m − b vectors of lowest score.

    Source: Blanchard et al. 2017 (arXiv:1703.02757), who average m − b − 2 or fewer; m − b is what is commonly compared.

    Args:
        b: >= 0.
    """

    b: int

    def __post_init__(self) -> None:
        bad("multi_krum", self.b)

    def tolerates(self, k: int) -> int:
        """b, of m >= 2b + 3."""
        return self.b if k >= 2 * self.b + 2 else 0

    def start(self, own: Tensor) -> Tensor:
        """Nothing."""
        return nothing(own)

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), and nothing."""
        enough("multi_krum", self.b, stack.count, self.b + 2)
        chosen = nearest(scores(between(stack.gram()), self.b), stack.count - self.b)
        return stack.combination(chosen.double() / (stack.count - self.b)), context.kept, ~chosen[:, 1:]


@dataclass(frozen=True, slots=True)
class Bulyan:
    """m − 2b vectors by Krum, one after the other and each time among those left; then, per coordinate, the mean of the m − 4b values
    nearest to the median of these.

    Source: El Mhamdi, Guerraoui and Rouault 2018, "The hidden vulnerability of distributed learning in Byzantium" (arXiv:1802.07927).

    Args:
        b: >= 0.
    """

    b: int

    def __post_init__(self) -> None:
        bad("bulyan", self.b)

    def tolerates(self, k: int) -> int:
        """b, of m >= 4b + 3."""
        return self.b if k >= 4 * self.b + 2 else 0

    def start(self, own: Tensor) -> Tensor:
        """Nothing."""
        return nothing(own)

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), and nothing."""
        enough("bulyan", self.b, stack.count, 4 * self.b + 1)
        distances = between(stack.gram())
        left = torch.ones(distances.shape[:2], dtype=torch.bool, device=distances.device)
        picked = []
        for _ in range(stack.count - 2 * self.b):
            winner = nearest(scores(distances, self.b, left), 1)
            picked.append(winner)
            left = left & ~winner
        return mean_around_median(stack.mixed(torch.stack(picked, dim=1).double()), 2 * self.b), context.kept, None


def scores(distances: Tensor, b: int, left: Tensor | None = None) -> Tensor:
    """(R, m) sums of the squared distances to the m − b − 2 nearest others.

    Args:
        distances: (R, m, m) squared.
        b: bad ones.
        left: (R, m) bool, as many in every row: those that still take part; the others get infinity.
    """
    count = distances.shape[1] if left is None else int(left[0].sum())
    if left is not None:
        distances = distances.masked_fill(~left.unsqueeze(1), torch.inf)
    itself = torch.eye(distances.shape[1], dtype=torch.bool, device=distances.device)
    ordered = distances.masked_fill(itself, torch.inf).sort(dim=2).values
    summed = ordered[:, :, : max(0, count - b - 2)].sum(dim=2)
    return summed if left is None else summed.masked_fill(~left, torch.inf)
