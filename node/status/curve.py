"""A curve of any length in bounded memory: of a running node, and of a record read back. A leaf."""

from __future__ import annotations

import math

from starling.node.status.snapshot import Point

MAX_POINTS = 240


class Curve:
    """A curve of any length in at most `limit` points: the first, the last, and evenly spaced ones between.

    Every `stride`-th point offered is kept; when they become too many, every second one is dropped and the stride doubles. Memory
    is bounded, and what remains is always the offered sequence at one stride.

    Args:
        limit: most points returned, >= 4.
    """

    def __init__(self, limit: int = MAX_POINTS) -> None:
        if limit < 4:
            raise ValueError(f"limit must be >= 4, got {limit}")
        self._limit = limit
        self._stride = 1
        self._offered = 0
        self._kept: list[Point] = []
        self._last: Point | None = None

    def add(self, round: int, time_s: float, value: float) -> None:
        """Offer a point. A value that is not finite is left out: JSON has no such numbers.

        Args:
            round: >= 0.
            time_s: seconds since the start.
            value: any float.
        """
        if not math.isfinite(value):
            return
        self._last = Point(round, time_s, value)
        if self._offered % self._stride == 0:
            self._kept.append(self._last)
            if len(self._kept) == self._limit:
                self._kept = self._kept[::2]
                self._stride *= 2
        self._offered += 1

    @property
    def points(self) -> tuple[Point, ...]:
        """Oldest first."""
        if self._last is None or self._kept[-1] is self._last:
            return tuple(self._kept)
        return (*self._kept, self._last)
