"""Sorting networks over rows: the order statistics of m values per coordinate, by minimum and maximum alone.

No index tensors and no strided sort: every step is one elementwise operation on two rows that lie in cache. Steps that none of the
wanted outputs depends on are left out: of the 63 comparators for 16 rows a median needs 53, a trimmed mean with f = 3 61.

Source: odd-even merge sort, Batcher 1968, "Sorting networks and their applications".

Shapes: m rows of any equal shape.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from starling.gossip.lazy_torch import Tensor, torch


@dataclass(frozen=True, slots=True)
class Network:
    """A compiled network. Registers 0 … m − 1 are the inputs, which are only read; those from m on are scratch."""

    steps: tuple[tuple[bool, int, int, int], ...]  # (whether the larger value is taken, first source, second source, destination)
    wires: tuple[int, ...]  # register with the i-th smallest value, valid for the wanted ones
    scratch: int  # registers needed beyond the inputs

    def sort(self, rows: Sequence[Tensor], scratch: Sequence[Tensor]) -> list[Tensor]:
        """Rows, m of equal shape, in ascending order, coordinate by coordinate; in scratch, or inputs themselves. Scratch, as many of that
        shape as the network needs, is overwritten.
        """
        registers = [*rows, *scratch]
        for larger, first, second, destination in self.steps:
            pick = torch.maximum if larger else torch.minimum
            pick(registers[first], registers[second], out=registers[destination])
        return [registers[wire] for wire in self.wires]


@lru_cache(maxsize=64)
def network(count: int, wanted: tuple[int, ...]) -> Network:
    """Return the network for `count` rows that computes the order statistics `wanted` (0 is the smallest)."""
    wires, free, steps = list(range(count)), list[int](), list[tuple[bool, int, int, int]]()
    top = count

    def scratch() -> int:
        nonlocal top
        if free:
            return free.pop()
        top += 1
        return top - 1

    for low, high, low_needed, high_needed in _pruned(count, wanted):
        sources = (wires[low], wires[high])
        if low_needed and high_needed:
            smaller = scratch()
            steps.append((False, *sources, smaller))
            wires[low] = smaller
        owned = [register for register in sources if register >= count]
        last = owned[0] if owned else scratch()  # the last reader of both sources may write over one
        steps.append((high_needed, *sources, last))
        wires[high if high_needed else low] = last
        free.extend(register for register in owned if register != last)
    return Network(tuple(steps), tuple(wires), top - count)


def _pruned(count: int, wanted: tuple[int, ...]) -> list[tuple[int, int, bool, bool]]:
    """Return the comparators that a wanted output depends on, and which of their two outputs are needed."""
    needed, comparators = set(wanted), list[tuple[int, int, bool, bool]]()
    for low, high in reversed(list(_comparators(count))):
        if low in needed or high in needed:
            comparators.append((low, high, low in needed, high in needed))
            needed |= {low, high}
    return comparators[::-1]


def _comparators(count: int) -> Iterator[tuple[int, int]]:
    size = 1
    while size < count:
        gap = size
        while gap >= 1:
            for start in range(gap % size, count - gap, 2 * gap):
                for low in range(start, start + min(gap, count - start - gap)):
                    if low // (2 * size) == (low + gap) // (2 * size):
                        yield low, low + gap
            gap //= 2
        size *= 2
