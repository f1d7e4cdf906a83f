"""A curve with axes: value over rounds."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rich.text import Text
from textual_plotext.plot import Plot

from starling.node.status import format as show
from starling.node.status.snapshot import Point
from starling.tui.throttle import Rest
from starling.tui.view import View
from starling.tui.widgets.panel import Panel
from starling.tui.widgets.titles import entitle

X_TICKS = 4
Y_TICKS = 4
LOGARITHMIC = 30.0  # highest by lowest value from which the axis is one of decades
TICK = 12  # cells of width that a tick of rounds needs
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
DOTS = re.compile(r"[\u2801-\u28ff•]+")


class CurvePlot(Panel):
    """One curve. Until there is a point it says so, instead of drawing an axis of nothing.

    Args:
        id: of the widget.
        title: what is drawn, e.g. loss.
    """

    def __init__(self, *, id: str, title: str) -> None:
        super().__init__(id=id, title=title)
        self._plot = Plot()
        self._rest = Rest()

    def update_from(self, points: Sequence[Point], title: str, view: View) -> None:
        """Draw these points under this title. Three curves cost more than all else on a screen, so they rest in between."""
        points = tuple(point for point in points if math.isfinite(point.value))
        if not self._rest.over((points, title, self.size, view.dark), view):
            return
        entitle(self, f"{title} {show.small(points[-1].value if points else None)}")
        if points:
            self.show(self._picture(points, view))
        else:
            self.show(Text(f"{show.MISSING}  not known yet", style=view.style("dim")))

    def _picture(self, points: Sequence[Point], view: View) -> Text:
        plot = self._plot
        rounds = [point.round for point in points]
        values = [point.value for point in points]
        plot.clear_data()
        # Over decades a linear axis shows a cliff and then nothing; we take logarithms and write the figures beside them.
        decades = min(values) > 0 and max(values) / min(values) > LOGARITHMIC
        heights = [math.log10(value) for value in values] if decades else values
        plot.plot(rounds, heights, marker="braille" if len(values) > 1 else "dot")
        ticks = min(X_TICKS, max(2, self.size.width // TICK))
        plot.xticks(*_ticks(float(min(rounds)), float(max(rounds)), ticks, whole=True))
        places, labels = _ticks(min(heights), max(heights), Y_TICKS, whole=False)
        plot.yticks(places, [show.small(10**place) for place in places] if decades else labels)
        plot.plotsize(self.size.width, self.size.height)
        plot._set_size(self.size.width, self.size.height)  # noqa: SLF001 - as PlotextPlot does: a plot of before keeps its size else
        plot.theme("clear")  # ours is painted below: to read colors back from its escapes costs as much as to plot
        text = Text(ESCAPES.sub("", plot.build()).rstrip("\n"), no_wrap=True)
        text.highlight_regex(DOTS, view.style("own"))
        return text


def _ticks(low: float, high: float, number: int, *, whole: bool) -> tuple[list[float], list[str]]:
    """Tick places between low and high, ends included, and what to write there."""
    places = [low + (high - low) * index / (number - 1) for index in range(number)] if high > low else [low]
    if whole:
        places = sorted({float(round(place)) for place in places})
        return places, [f"{place:.0f}" for place in places]
    return places, [show.small(place) for place in places]
