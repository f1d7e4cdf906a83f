"""Assign machines to crews, and order them: crews wait for nobody but themselves, so the sum of their rates counts.

From random partitions, machines of two crews are swapped, or a member and one that is left over, as long as the sum grows. Where DT-FM
(Yuan et al. 2022, arXiv:2206.01288) averages every step over groups of equal stages and has to match them, members that gossip do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache
from random import Random

EXACT = 6  # largest number of machines for which all orders of a crew are tried
STARTS = 3  # random partitions

Rate = Callable[[tuple[int, ...]], float]
"""Machines in pipeline order -> steps a second; where the model does not fit, minus the bytes that are missing."""


def place(machines: Sequence[int], size: int, rate: Rate, near: Callable[[int, int], float], seed: int = 0) -> list[tuple[int, ...]]:
    """Crews of `size` machines, each in order, with the largest sum of rates over random starts; those that cannot train are left out.

    Args:
        near: how long the line between two machines is; used to order crews where there are more than EXACT machines.
        seed: of the partitions that the search starts from.
    """
    exact = len(machines) <= EXACT

    @cache
    def best(crew: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        if len(crew) < size:
            return 0.0, crew
        orders = itertools.permutations(crew) if exact else iter([_nearest(start, crew, near) for start in crew])
        return max((rate(each), each) for each in orders)

    chosen: list[tuple[float, tuple[int, ...]]] = []
    for start in range(STARTS):
        mixed = list(machines)
        Random(seed * STARTS + start).shuffle(mixed)  # noqa: S311
        groups = [tuple(sorted(mixed[at : at + size])) for at in range(0, len(mixed), size)]
        while _swap(groups, lambda crew: best(crew)[0]):
            pass
        reached = [it for it in map(best, groups) if it[0] > 0.0]
        chosen = max(chosen, reached, key=lambda crews: sum(it[0] for it in crews))
    return [crew for _, crew in sorted(chosen, key=lambda it: (-it[0], it[1]))]


def _swap(groups: list[tuple[int, ...]], rate: Rate) -> bool:
    """Apply each beneficial swap of two machines, once through all pairs; return whether there was one."""
    swapped = False
    for a, b in itertools.combinations(range(len(groups)), 2):
        for out, into in itertools.product(groups[a], groups[b]):
            if out not in groups[a] or into not in groups[b]:
                continue
            before = rate(groups[a]) + rate(groups[b])
            one, other = _with(groups[a], out, into), _with(groups[b], into, out)
            if rate(one) + rate(other) > before + 1e-9 * abs(before):
                groups[a], groups[b] = one, other
                swapped = True
    return swapped


def _with(crew: tuple[int, ...], out: int, into: int) -> tuple[int, ...]:
    return tuple(sorted({*crew} - {out} | {into}))


def _nearest(start: int, crew: Sequence[int], near: Callable[[int, int], float]) -> tuple[int, ...]:
    walked, left = [start], sorted({*crew} - {start})
    while left:
        walked.append(min(left, key=lambda other: (near(walked[-1], other), other)))
        left.remove(walked[-1])
    return tuple(walked)
