"""A curve with axes: value over rounds."""

import math
import re
from collections.abc import Sequence

from rich.text import Text
from textual_plotext.plot import Plot

from starling.node.status import format as show
from starling.node.status.snapshot import Point
from starling.tui.view import Throttle, View
from starling.tui.widgets.lines import Panel, entitle

X_TICKS = 4
Y_TICKS = 4
LOGARITHMIC = 30.0  # highest by lowest value from which the axis is one of decades
TICK = 12  # cells of width that a tick of rounds needs
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
BOUNDED = ("accuracy", "precision", "recall", "f1", "auc", "top1", "top5")
"""Names of metrics that lie in [0, 1], or begin so."""
LEAST_SPAN = 0.1  # of the axis of a bounded metric: noise in the third digit must not look like a cliff
DOTS = re.compile(r"[\u2801-\u28ff•]+")


class CurvePlot(Panel):
    """One curve, or a line of text while it has no point."""

    def __init__(self, *, id: str, title: str) -> None:
        super().__init__(id=id, title=title)
        self._plot = Plot()
        self._throttle = Throttle()

    def update_from(self, points: Sequence[Point], title: str, view: View, *, bounded: bool = False) -> None:
        """Draw points, oldest first, at most every REDRAW_S: three curves cost more than all else on a page.

        `bounded`: values are in [0, 1], and are drawn on an axis of at least LEAST_SPAN.
        """
        points = tuple(point for point in points if math.isfinite(point.value))
        if not self._throttle.due((points, title, self.size, view.dark), view):
            return
        entitle(self, f"{title} {show.small(points[-1].value if points else None)}")
        if points:
            self.show(self._picture(points, view, bounded=bounded))
        else:
            self.show(Text(f"{show.MISSING}  not known yet", style=view.style("dim")))

    def _picture(self, points: Sequence[Point], view: View, *, bounded: bool) -> Text:
        plot = self._plot
        rounds = [point.round for point in points]
        values = [point.value for point in points]
        plot.clear_data()
        # Over decades a linear axis shows a cliff and then nothing: a logarithmic one, labelled with the values.
        decades = not bounded and min(values) > 0 and max(values) / min(values) > LOGARITHMIC
        heights = [math.log10(value) for value in values] if decades else values
        plot.plot(rounds, heights, marker="braille" if len(values) > 1 else "dot")
        ticks = min(X_TICKS, max(2, self.size.width // TICK))
        plot.xticks(*_ticks(float(min(rounds)), float(max(rounds)), ticks, whole=True))
        low, high = _span(min(heights), max(heights)) if bounded else (min(heights), max(heights))
        plot.ylim(*((low, high) if bounded else (None, None)))
        places, labels = _ticks(low, high, Y_TICKS, whole=False)
        plot.yticks(places, [show.small(10**place) for place in places] if decades else labels)
        plot.plotsize(self.size.width, self.size.height)
        plot._set_size(self.size.width, self.size.height)  # noqa: SLF001 - as PlotextPlot does, or the plot keeps its former size
        plot.theme("clear")  # colors are set below: reading them back from escapes costs as much as plotting
        text = Text(ESCAPES.sub("", plot.build()).rstrip("\n"), no_wrap=True)
        text.highlight_regex(DOTS, view.style("own"))
        return text


def is_bounded(metric: str) -> bool:
    """Whether a metric of this name lies in [0, 1]."""
    return metric.casefold().startswith(BOUNDED)


def _span(low: float, high: float) -> tuple[float, float]:
    """At least LEAST_SPAN around both, within [0, 1] if they are."""
    if high - low >= LEAST_SPAN:
        return low, high
    middle = (low + high) / 2
    bottom = min(max(middle - LEAST_SPAN / 2, min(0.0, low)), max(1.0, high) - LEAST_SPAN)
    return bottom, bottom + LEAST_SPAN


def _ticks(low: float, high: float, number: int, *, whole: bool) -> tuple[list[float], list[str]]:
    """Tick places between low and high, ends included, and what to write there."""
    places = [low + (high - low) * index / (number - 1) for index in range(number)] if high > low else [low]
    if whole:
        places = sorted({float(round(place)) for place in places})
        return places, [f"{place:.0f}" for place in places]
    return places, [show.small(place) for place in places]
