"""Consecutive blocks to machines in a given order, so that the slowest stage is as fast as can be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache


def cut(costs: Sequence[float], speeds: Sequence[float], fits: Callable[[int, int, int], bool]) -> tuple[int, ...] | None:
    """Return where each stage ends: the last is len(costs). None: no cut fits.

    best(n, i) = min over j > i, where the blocks i to j fit into machine n, of max(their cost / its speed, best(n + 1, j)); every machine
    gets a block. O(blocks² · machines).

    Args:
        costs: of each block, > 0.
        speeds: of each machine in pipeline order, in costs a second, > 0.
        fits: (machine, first block, end) -> whether they fit into its memory; more blocks never fit where fewer do not.
    """
    count, machines = len(costs), len(speeds)
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)

    @cache
    def best(n: int, i: int) -> tuple[float, int]:
        left = machines - n - 1
        if left == 0:
            return ((sums[count] - sums[i]) / speeds[n], count) if fits(n, i, count) else (math.inf, count)
        found = (math.inf, i)
        for j in range(i + 1, count - left + 1):
            own = (sums[j] - sums[i]) / speeds[n]
            if own >= found[0] or not fits(n, i, j):
                break
            found = min(found, (max(own, best(n + 1, j)[0]), j))
        return found

    if machines > count or best(0, 0)[0] == math.inf:
        return None
    ends, at = [], 0
    for n in range(machines):
        at = best(n, at)[1]
        ends.append(at)
    return tuple(ends)
