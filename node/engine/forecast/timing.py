"""Seconds of calls, and of single operations. These alternate, so that none has its data in a cache that a step would have evicted."""

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import torch

from starling.node.engine.forecast.operations import Operation

Clock = Callable[[], float]
"""Seconds."""
REPEATS = 12
GROUP_BYTES = 1 << 30
LONGEST_S = 20.0  # seconds for timing, once each operation was timed at least twice


def times(call: Callable[[], object], clock: Clock, repeats: int) -> Iterator[float]:
    """Yield the seconds of each of `count` calls."""
    for _ in range(repeats):
        start = clock()
        call()
        yield clock() - start


def taken(call: Callable[[], object], clock: Clock, repeats: int) -> float:
    """Return the median seconds of a call, after one warm-up call."""
    return median(list(times(call, clock, repeats + 1))[1:])


def kernels(operations: Sequence[Operation], clock: Clock, *, repeats: int = REPEATS) -> float:
    """Return the seconds of all operations alone."""
    return sum(apart(operations, clock, repeats=repeats))


def apart(operations: Sequence[Operation], clock: Clock, *, repeats: int = REPEATS, longest_s: float = LONGEST_S) -> list[float]:
    """Return the seconds of each operation, times how often it is done.

    They are medians of alternating measurements, in groups of at most `GROUP_BYTES` if possible.
    """
    groups, left = [list[Operation]()], GROUP_BYTES
    for each in operations:
        if each.bytes > left and groups[-1]:
            groups.append([])
            left = GROUP_BYTES
        groups[-1].append(each)
        left -= each.bytes
    with torch.no_grad():
        return [each_s for group in groups for each_s in _in_turn(group, clock, repeats, longest_s / len(groups))]


def _in_turn(operations: Sequence[Operation], clock: Clock, repeats: int, longest_s: float) -> list[float]:
    ready = [(each.call, each.arguments(), list[float]()) for each in operations]
    began, idle_s = time.perf_counter(), median(times(lambda: None, clock, 200))
    for number in range(repeats + 1):
        for call, (args, kwargs), seconds in ready:
            start = clock()
            call(*args, **kwargs)
            seconds.append(clock() - start - idle_s)
        if number > 1 and time.perf_counter() - began > longest_s:
            break
    warm = (median(seconds[1:]) for _, _, seconds in ready)  # the first measurement is a warm-up
    return [each.count * each_s for each, each_s in zip(operations, warm, strict=True)]
