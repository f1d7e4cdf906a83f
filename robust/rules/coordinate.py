"""Rules that treat each coordinate separately.

Ties are between equal values; of two values equally near to the median the lower is taken. Not for sparse payloads: where most peers send
no value for a coordinate its median is our own value.

Shapes: R rows, m vectors, D numbers each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starling.gossip.api import Combined
from starling.gossip.bounds import parameters
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.api import Context, Tolerant, check_count
from starling.robust.rules.sorting_network import network
from starling.robust.rules.stack import Stack


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of all m vectors: no defense, the baseline for all rules."""

    @staticmethod
    def check(_agreed: Any) -> list[str]:
        """Return warnings for the manifest."""
        return ["robust.rule: one Byzantine peer of the peers ruins a mean; `--set robust.rule=cs_nnm`"]

    def reduce(self, stack: Stack, context: Context) -> Combined:
        weights = torch.full((stack.own.shape[0], stack.count), 1 / stack.count, dtype=torch.float64)
        return stack.combination(weights.to(stack.own.device)), context.state, None


@dataclass(frozen=True, slots=True)
class Median:
    """The median of every coordinate; of an even number of values the mean of the middle two.

    Source: Yin et al. 2018 (arXiv:1803.01498).
    """

    def reduce(self, stack: Stack, context: Context) -> Combined:
        middle = tuple(sorted(set(_middle(stack.count))))
        return stack.coordinates(network(stack.count, middle), median), context.state, None


@parameters
class TrimmedMean(Tolerant):
    """The mean of every coordinate without its f lowest and f highest values.

    Source: Yin et al. 2018 (arXiv:1803.01498).
    """

    def reduce(self, stack: Stack, context: Context) -> Combined:
        check_count("trimmed_mean", self.f, stack.count, 2 * self.f + 1)
        remaining = range(self.f, stack.count - self.f)

        def finish(values: Sequence[Tensor], out: Tensor) -> None:
            out.copy_(values[remaining[0]])
            for index in remaining[1:]:
                out.add_(values[index])
            out.div_(len(remaining))

        return stack.coordinates(network(stack.count, tuple(remaining)), finish), context.state, None


@parameters
class MeaMed(Tolerant):
    """The mean of the m − f values of every coordinate that are nearest to its median.

    Source: Xie, Koyejo and Gupta 2018 (arXiv:1802.10116).
    """

    def reduce(self, stack: Stack, context: Context) -> Combined:
        check_count("meamed", self.f, stack.count, 2 * self.f + 1)
        return mean_around_median(stack, self.f), context.state, None


def mean_around_median(stack: Stack, dropped: int) -> Tensor:
    """Return (R, D), the mean of the values of a coordinate that are nearest to its median, all but `dropped` of them.

    In ascending order the nearest values are adjacent, so only their first index is searched. Moving the window from s to s + 1 pays if
    the value that enters is nearer than the one that leaves; if it does not pay at s, it does not at any later index.
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
