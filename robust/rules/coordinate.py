"""Rules that look at one coordinate at a time.

Ties are between equal values, so that there is nothing to choose; where two values are equally near to the median, the lower is taken.
Not for sparse payloads: where most peers say nothing about a coordinate, its median is our own value and nobody learns.

Shapes: m vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starling.gossip.api import Combined
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.api import Context, bad, enough, nothing
from starling.robust.rules.sorting_network import network
from starling.robust.rules.stack import Stack


@dataclass(frozen=True, slots=True)
class Median:
    """The median of every coordinate; of an even number of values the mean of the middle two.

    Source: Yin et al. 2018 (arXiv:1803.01498).
    """

    def tolerates(self, k: int) -> int:
        """Fewer than half of the m vectors."""
        return k // 2

    def start(self, own: Tensor) -> Tensor:
        """Nothing."""
        return nothing(own)

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), and nothing."""
        middle = _middle(stack.count)
        return stack.coordinates(network(stack.count, tuple(sorted(set(middle)))), median), context.kept, None


@dataclass(frozen=True, slots=True)
class TrimmedMean:
    """The mean of every coordinate without its b lowest and b highest values.

    Source: Yin et al. 2018 (arXiv:1803.01498).

    Args:
        b: >= 0.
    """

    b: int

    def __post_init__(self) -> None:
        bad("trimmed_mean", self.b)

    def tolerates(self, k: int) -> int:
        """b, of m >= 2b + 1."""
        return self.b if k >= 2 * self.b else 0

    def start(self, own: Tensor) -> Tensor:
        """Nothing."""
        return nothing(own)

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), and nothing."""
        enough("trimmed_mean", self.b, stack.count, 2 * self.b + 1)
        kept = range(self.b, stack.count - self.b)

        def finish(values: Sequence[Tensor], out: Tensor) -> None:
            out.copy_(values[kept[0]])
            for index in kept[1:]:
                out.add_(values[index])
            out.div_(len(kept))

        return stack.coordinates(network(stack.count, tuple(kept)), finish), context.kept, None


@dataclass(frozen=True, slots=True)
class MeaMed:
    """The mean of the m − b values of every coordinate that are nearest to its median.

    Source: Xie, Koyejo and Gupta 2018 (arXiv:1802.10116).

    Args:
        b: >= 0.
    """

    b: int

    def __post_init__(self) -> None:
        bad("meamed", self.b)

    def tolerates(self, k: int) -> int:
        """b, of m >= 2b + 1."""
        return self.b if k >= 2 * self.b else 0

    def start(self, own: Tensor) -> Tensor:
        """Nothing."""
        return nothing(own)

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), and nothing."""
        enough("meamed", self.b, stack.count, 2 * self.b + 1)
        return mean_around_median(stack, self.b), context.kept, None


def mean_around_median(stack: Stack, dropped: int) -> Tensor:
    """(R, D) the mean of the values of a coordinate that are nearest to its median, all but `dropped` of them.

    In ascending order the nearest lie side by side, so that it is only to be found where they begin. Moving on from s pays if the value
    that comes in is nearer than the one that goes; differences grow with s on one side and shrink on the other, so if it does not pay
    at s, it never does later.
    """
    size = stack.count - dropped

    def finish(values: Sequence[Tensor], out: Tensor) -> None:
        center = torch.empty_like(out)
        median(values, center)
        moves = [values[start + size] - center < center - values[start] for start in range(dropped)]
        out.zero_()
        for index, value in enumerate(values):
            inside = None
            if index < dropped:
                inside = ~moves[index]
            if index >= size:
                inside = moves[index - size] if inside is None else inside & moves[index - size]
            out.add_(value if inside is None else torch.where(inside, value, 0.0))
        out.div_(size)

    return stack.coordinates(network(stack.count, tuple(range(stack.count))), finish)


def median(values: Sequence[Tensor], out: Tensor) -> None:
    """The median of values in ascending order. Halves are added, as a sum may overflow."""
    low, high = _middle(len(values))
    if low == high:
        out.copy_(values[low])
    else:
        torch.mul(values[low], 0.5, out=out)
        out.add_(values[high], alpha=0.5)


def _middle(count: int) -> tuple[int, int]:
    return (count - 1) // 2, count // 2
