"""The axes of a curve over rounds: which of its points can be drawn, whether its heights are decades, its ticks. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from starling.node.status import format as show
from starling.node.status.snapshot import Point

X_TICKS = 4
Y_TICKS = 4
LOGARITHMIC = 30.0  # highest by lowest value from which the axis is one of decades
BOUNDED = ("accuracy", "precision", "recall", "f1", "auc", "top1", "top5")
"""Names of metrics that lie in [0, 1], or begin so."""
LEAST_SPAN = 0.1  # smallest range of a bounded metric's axis: noise in the third digit must not look like a cliff

Ticks = tuple[list[float], list[str]]
"""Places between the ends of an axis, and what to write there."""


@dataclass(frozen=True, slots=True)
class Axes:
    """Axes of a plot: `rounds` and `heights` of the same length, the ends of the vertical axis, and the ticks of both."""

    rounds: list[int]
    heights: list[float]
    low: float
    high: float
    x_ticks: Ticks
    y_ticks: Ticks


def finite(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points with finite values."""
    return tuple(point for point in points if math.isfinite(point.value))


def axes(points: Sequence[Point], *, bounded: bool, x_ticks: int = X_TICKS) -> Axes:
    """Return the axes of >= 1 finite points; `bounded`: values are in [0, 1], and the axis spans at least LEAST_SPAN."""
    rounds = [point.round for point in points]
    values = [point.value for point in points]
    # Values over several decades need a logarithmic axis, labelled with the values.
    decades = not bounded and min(values) > 0 and max(values) / min(values) > LOGARITHMIC
    heights = [math.log10(value) for value in values] if decades else values
    low, high = _span(min(heights), max(heights)) if bounded else (min(heights), max(heights))
    places, labels = _ticks(low, high, Y_TICKS, whole=False)
    return Axes(
        rounds=rounds,
        heights=heights,
        low=low,
        high=high,
        x_ticks=_ticks(float(min(rounds)), float(max(rounds)), x_ticks, whole=True),
        y_ticks=(places, [show.small(10**place) for place in places] if decades else labels),
    )


def is_bounded(metric: str) -> bool:
    """Return whether a metric of this name lies in [0, 1]."""
    return metric.casefold().startswith(BOUNDED)


def _span(low: float, high: float) -> tuple[float, float]:
    """Return at least LEAST_SPAN around both, within [0, 1] if they are."""
    if high - low >= LEAST_SPAN:
        return low, high
    middle = (low + high) / 2
    bottom = min(max(middle - LEAST_SPAN / 2, min(0.0, low)), max(1.0, high) - LEAST_SPAN)
    return bottom, bottom + LEAST_SPAN


def _ticks(low: float, high: float, number: int, *, whole: bool) -> Ticks:
    """Tick places between low and high, ends included, and what to write there."""
    places = [low + (high - low) * index / (number - 1) for index in range(number)] if high > low else [low]
    if whole:
        places = sorted({float(round(place)) for place in places})
        return places, [f"{place:.0f}" for place in places]
    return places, [show.small(place) for place in places]
