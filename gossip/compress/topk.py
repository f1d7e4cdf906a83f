"""The largest magnitudes of a long vector, exactly, without sorting it and without a copy of it.

A sample estimates a value that somewhat more than k coordinates exceed; one pass gathers those; their k largest are the k largest of all.
Where the estimate is wrong (repeated values, or an order that correlates with the sample's stride), the k-th largest
value is found by bisection of its bits, a pass each. The result never depends on the sample, nor on the device.

A pass goes chunk by chunk through the processor's cache.

Shapes: d parameters, k kept coordinates.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from starling.gossip.lazy_torch import Tensor, torch

_ABOVE = 1024  # magnitudes of the sample above the value: its rank in the vector is then known to 3 %, one standard deviation
_SAMPLE = 1 << 20  # longest sample
_MARGIN, _DEVIATIONS = 1.05, 4.0
_MOST = 4  # times k gathered; with more, the sample has said nothing
_SHORT = 1 << 14  # numbers that can always be gathered
_CHUNK = 1 << 18
_CHUNK_ELSEWHERE = 1 << 22


def largest(x: Tensor, count: int, reference: Tensor | None = None) -> Tensor:
    """Return the indices of the largest |x − reference|, the lowest among equal ones: (k,) int64 on the device of x, ascending.

    x (d,) float32 or float64, finite; `count` = k in [1, d]; a reference of None is 0.
    """
    vector = Magnitudes(x.detach(), reference)
    limit = _guess(vector, count)
    found = vector.above(limit, max(_MOST * count, _SHORT))
    if found is not None and len(found[0]) >= count:
        places, values = found
        least = _kth_of(values, count)
        chosen, equal = values > least, _where(values == least)
        chosen[equal[: count - int(chosen.sum())]] = True
        return places[chosen]
    least = _kth(vector, count, limit)
    found = vector.above(least, count)
    assert found is not None, "more than k exceed the k-th largest"
    return torch.cat((found[0], vector.equal(least, count - len(found[0])))).sort().values


@dataclass(frozen=True, slots=True)
class Magnitudes:
    """|x − reference|, computed in parts."""

    x: Tensor
    reference: Tensor | None

    def part(self, part: slice) -> Tensor:
        """Return some of them."""
        return self.x[part].abs() if self.reference is None else (self.x[part] - self.reference[part]).abs_()

    def chunks(self) -> Iterator[tuple[int, Tensor]]:
        """Yield first index and magnitudes of each chunk."""
        many = _CHUNK if self.x.device.type == "cpu" else _CHUNK_ELSEWHERE
        for start in range(0, self.x.numel(), many):
            yield start, self.part(slice(start, start + many))

    def at_least(self, limit: float) -> int:
        """Count those not below the limit."""
        return sum(int((chunk >= limit).sum()) for _, chunk in self.chunks())

    def above(self, limit: float, most: int, compare: Callable[[Any, float], Any] = operator.gt) -> tuple[Tensor, Tensor] | None:
        """Places, ascending, and magnitudes of those above the limit, in the sense of `compare`; None if more than `most`."""
        places: list[Tensor] = []
        values: list[Tensor] = []
        total = 0
        for start, chunk in self.chunks():
            local = _where(compare(_array(chunk), limit))
            total += local.numel()
            if total > most:
                return None
            values.append(chunk[local])
            places.append(local.add_(start))
        return torch.cat(places), torch.cat(values)

    def equal(self, value: float, wanted: int) -> Tensor:
        """Return the first places of just this magnitude, as many as wanted."""
        places: list[Tensor] = []
        for start, chunk in self.chunks():
            places.append(_where(chunk == value)[:wanted].add_(start))
            wanted -= places[-1].numel()
            if wanted == 0:
                break
        return torch.cat(places)


def _guess(vector: Magnitudes, count: int) -> float:
    """Return a threshold that probably somewhat more than k magnitudes exceed; −1 to take all."""
    dim = vector.x.numel()
    stride = max(count // _ABOVE, dim // _SAMPLE) | 1  # odd: layer widths are even, so no column is sampled alone
    sample = vector.part(slice(None, None, stride))
    expected = count / dim * sample.numel()
    rank = math.ceil(expected * _MARGIN + _DEVIATIONS * math.sqrt(expected))
    return -1.0 if dim <= _SHORT or rank >= sample.numel() else _kth_of(sample, rank)


def _kth(vector: Magnitudes, count: int, guess: float) -> float:
    """Return the k-th largest, exactly: the largest value that at least k magnitudes reach.

    Positive floats are ordered like their bits, so the search is one over integers; the guess and its successor are tried first.
    """
    bits = {torch.float32: torch.int32, torch.float64: torch.int64}[vector.x.dtype]
    reached, missed = 0, int(torch.tensor(math.inf, dtype=vector.x.dtype).view(bits))
    first = int(torch.tensor(guess, dtype=vector.x.dtype).view(bits)) if guess > 0 else 0
    tries = [first + 1, first]
    while missed - reached > 1:
        middle = tries.pop() if tries else (reached + missed) // 2
        if not reached < middle < missed:
            continue
        if vector.at_least(_float(middle, bits)) >= count:
            reached = middle
        else:
            missed = middle
    return _float(reached, bits)


def _float(bits: int, dtype: torch.dtype) -> float:
    return float(torch.tensor(bits, dtype=dtype).view(torch.float32 if dtype == torch.int32 else torch.float64))


def _kth_of(values: Tensor, count: int) -> float:
    """Return the count-th largest of some."""
    if values.device.type == "cpu":  # in a quarter of the memory that topk takes
        return float(np.partition(values.numpy(), values.numel() - count)[values.numel() - count])
    return float(values.topk(count, sorted=False).values.min())


def _where(mask: Any) -> Tensor:
    """Map (n,) bool, of `_array` or a tensor -> places of True, ascending."""
    mask = _array(mask)
    return torch.from_numpy(np.flatnonzero(mask)) if isinstance(mask, np.ndarray) else mask.nonzero().view(-1)


def _array(values: Any) -> Any:
    """Return a numpy array on a CPU, which compares and searches there twice as fast as torch."""
    return values.numpy() if isinstance(values, torch.Tensor) and values.device.type == "cpu" else values
