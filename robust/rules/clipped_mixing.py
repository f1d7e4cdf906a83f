"""Clipping about our own vector, then nearest neighbor mixing and the trimmed mean of what is left.

Clipping alone bounds what a liar does in one round and lets it go on in every round; selection alone throws liars out and is carried off
once when there are more of them than it was set for. One after the other, a liar is thrown out, and an overflow is a bounded step.

Shapes: R rows, k peers of whom k' are there, m' = k' + 1 vectors with our own.
"""

from __future__ import annotations

from dataclasses import dataclass

from starling.gossip.api import Combined
from starling.gossip.lazy_torch import Tensor
from starling.robust.preaggregate.nearest import neighborly
from starling.robust.rules.api import Context, bad
from starling.robust.rules.clipping import expected, outlived, running_step
from starling.robust.rules.coordinate import TrimmedMean
from starling.robust.rules.distances import HALF, between, shortened
from starling.robust.rules.stack import Stack


@dataclass(frozen=True, slots=True)
class CsNnm:
    """CS+, nearest neighbor mixing and the trimmed mean, each with b' = min(b, ⌊(k' − 1)/2⌋).

    Differences to our own vector are shortened to the threshold of `CsPlus`; each vector becomes the mean of its m' − b' nearest; of every
    coordinate the b' lowest and b' highest are left out. All that were shortened are equally near to us; the nearest of them are those
    that were. Who is absent is no vector at all. What comes out differs from our own by less than √m' thresholds, whoever and however
    many the bad ones are.

    Source: ours. Clipping before selection is Allouah et al. 2024, ARC (arXiv:2405.14778), there about zero; the parts are
    arXiv:2410.10418, 2302.01772 and 1803.01498.

    Args:
        b: >= 0.
    """

    b: int

    def __post_init__(self) -> None:
        bad("cs_nnm", self.b)

    def tolerates(self, k: int) -> int:
        """b, of k >= 2b + 1."""
        return self.b if k > 2 * self.b else 0

    def start(self, own: Tensor) -> Tensor:
        """No step yet."""
        return own.new_zeros((own.shape[0], 1))

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), the running mean of our step lengths, and who was clipped to less than half."""
        heard, step = stack.heard, running_step(context)
        distances = stack.squares().sqrt()
        factors = shortened(distances, outlived(distances, heard, self.b, step))
        combined = stack.own.clone()
        there = heard.sum(dim=1)
        for count in sorted(set(there.tolist())):  # one for a node; a simulator has rows that miss others
            rows = (there == count).nonzero().flatten()
            allowed = int(expected(there[rows[0]], self.b))
            places = heard[rows].nonzero()[:, 1].view(len(rows), count)
            clipped = stack.only(rows).mixed(_clipping(factors[rows], places))
            apart = between(clipped.gram())
            apart[:, 0, 1:] = distances[rows].gather(1, places)  # all that were clipped are as near to us now
            mixed = clipped.mixed(neighborly(apart, allowed))
            combined[rows], _, _ = TrimmedMean(allowed).reduce(mixed, context)
        return combined, step.to(context.kept.dtype), factors < HALF


def _clipping(factors: Tensor, places: Tensor) -> Tensor:
    """(R, k' + 1, k + 1) what the clipped vectors of those who are there are of all of them; our own stays the first.

    Args:
        factors: (R, k) what is left of each difference.
        places: (R, k') int64 who is there.
    """
    rows, count = places.shape
    kept = factors.gather(1, places)
    mixing = factors.new_zeros((rows, count + 1, factors.shape[1] + 1))
    mixing[:, 0, 0] = 1.0
    mixing[:, 1:, 0] = 1 - kept
    mixing[:, 1:].scatter_(2, places[:, :, None] + 1, kept[:, :, None])
    return mixing
