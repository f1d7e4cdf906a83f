"""Rules that select vectors by their distances from each other: Krum, multi-Krum, Bulyan, minimum diameter averaging.

Krum's score of a vector is the sum of the squared distances to its m − f − 2 nearest others, as in the paper (some libraries take one
more). Of equal scores the lower index wins; our own vector is the first, peers follow in order of their ids.

Shapes: R rows, m vectors.
"""

import math
from itertools import combinations, islice

from starling.gossip.api import Combined
from starling.gossip.bounds import parameters
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.api import Context, Tolerant, check_count
from starling.robust.rules.coordinate import mean_around_median
from starling.robust.rules.distances import between, nearest
from starling.robust.rules.stack import Stack

MAX_SUBSETS = 100_000  # most subsets that minimum diameter averaging compares; C(16, 3) = 560, C(20, 6) = 38,760
_AT_ONCE = 1 << 20  # distances


@parameters
class Krum(Tolerant):
    """The vector of lowest score. With data that differ from node to node little better than no exchange at all.

    Source: Blanchard et al. 2017, "Machine learning with adversaries" (arXiv:1703.02757).
    """

    def reduce(self, stack: Stack, context: Context) -> Combined:
        check_count("krum", self.f, stack.count, self.f + 2)
        chosen = nearest(scores(between(stack.gram()), self.f), 1)
        return stack.combination(chosen.double()), context.state, None


@parameters
class MultiKrum(Tolerant):
    """The mean of the m − f vectors of lowest score.

    Source: Blanchard et al. 2017 (arXiv:1703.02757), who average m − f − 2 or fewer; m − f is what is commonly compared.
    """

    def reduce(self, stack: Stack, context: Context) -> Combined:
        check_count("multi_krum", self.f, stack.count, self.f + 2)
        chosen = nearest(scores(between(stack.gram()), self.f), stack.count - self.f)
        return stack.combination(chosen.double() / (stack.count - self.f)), context.state, ~chosen[:, 1:]


@parameters
class Bulyan(Tolerant):
    """m − 2f vectors by repeated Krum among those not selected yet; then MeaMed of these with 2f values dropped per coordinate.

    Source: El Mhamdi, Guerraoui and Rouault 2018, "The hidden vulnerability of distributed learning in Byzantium" (arXiv:1802.07927).
    """

    def reduce(self, stack: Stack, context: Context) -> Combined:
        check_count("bulyan", self.f, stack.count, 4 * self.f + 1)
        distances = between(stack.gram())
        left = torch.ones(distances.shape[:2], dtype=torch.bool, device=distances.device)
        picked = []
        for _ in range(stack.count - 2 * self.f):
            winner = nearest(scores(distances, self.f, left), 1)
            picked.append(winner)
            left = left & ~winner
        return mean_around_median(stack.mixed(torch.stack(picked, dim=1).double()), 2 * self.f), context.state, None


@parameters
class Mda(Tolerant):
    """Minimum diameter averaging: the mean of the m − f vectors of least diameter; of equal subsets the first in order of indices.

    Compares every subset: for few vectors only.

    Source: El Mhamdi et al. 2020 (arXiv:1905.03853).
    """

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """Raise ValueError: there are more than MAX_SUBSETS subsets."""
        check_count("mda", self.f, stack.count, 2 * self.f + 1)
        size = stack.count - self.f
        if math.comb(stack.count, size) > MAX_SUBSETS:
            raise ValueError(f"mda: f = {self.f} of {stack.count} vectors has more than {MAX_SUBSETS} subsets")
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
        return stack.combination(chosen.double() / size), context.state, ~chosen[:, 1:]


def scores(distances: Tensor, f: int, left: Tensor | None = None) -> Tensor:
    """Return (R, m) Krum's scores by squared distances (R, m, m), f vectors of m assumed Byzantine; of those not in `left` (R, m),
    infinity.

    `left` has as many in every row.
    """
    count = distances.shape[1] if left is None else int(left[0].sum())
    if left is not None:
        distances = distances.masked_fill(~left.unsqueeze(1), torch.inf)
    itself = torch.eye(distances.shape[1], dtype=torch.bool, device=distances.device)
    ordered = distances.masked_fill(itself, torch.inf).sort(dim=2).values
    summed = ordered[:, :, : max(0, count - f - 2)].sum(dim=2)
    return summed if left is None else summed.masked_fill(~left, torch.inf)
