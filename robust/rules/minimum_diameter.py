"""Minimum diameter averaging.

Shapes: R rows, m vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations, islice

from starling.gossip.api import Combined
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.api import Context, bad, enough, nothing
from starling.robust.rules.distances import between
from starling.robust.rules.stack import Stack

MOST = 100_000
"""Subsets that are looked at; C(16, 3) = 560, C(20, 6) = 38,760."""
_AT_ONCE = 1 << 20  # distances


@dataclass(frozen=True, slots=True)
class Mda:
    """The mean of those m − b vectors of which the two farthest are nearest; of equal subsets the first in order of indices.

    Every subset is looked at: for few vectors only.

    Source: El Mhamdi et al. 2020 (arXiv:1905.03853).

    Args:
        b: >= 0.
    """

    b: int

    def __post_init__(self) -> None:
        bad("mda", self.b)

    def tolerates(self, k: int) -> int:
        """b, of m >= 2b + 1."""
        return self.b if k >= 2 * self.b else 0

    def start(self, own: Tensor) -> Tensor:
        """Nothing."""
        return nothing(own)

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), nothing, and who is in no mean.

        Raises:
            ValueError: there are more than MOST subsets.
        """
        enough("mda", self.b, stack.count, 2 * self.b + 1)
        size = stack.count - self.b
        if math.comb(stack.count, size) > MOST:
            raise ValueError(f"mda: b = {self.b} of {stack.count} vectors has more than {MOST} subsets")
        distances = between(stack.gram())
        best = distances.new_full((len(distances),), torch.inf)
        chosen = torch.zeros(distances.shape[:2], dtype=torch.bool, device=distances.device)
        every = combinations(range(stack.count), size)
        while some := list(islice(every, max(1, _AT_ONCE // (len(distances) * size * size)))):
            subsets = torch.tensor(some, device=distances.device)
            diameters = distances[:, subsets.unsqueeze(2), subsets.unsqueeze(1)].amax(dim=(2, 3))
            least, first = diameters.min(dim=1)
            members = torch.zeros_like(chosen).scatter_(1, subsets[first], True)
            chosen = torch.where((least < best).unsqueeze(1), members, chosen)
            best = torch.minimum(least, best)
        return stack.combination(chosen.double() / size), context.kept, ~chosen[:, 1:]
