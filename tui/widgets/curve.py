"""A curve with axes: value over rounds."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.app import RenderResult
from textual_plotext import PlotextPlot

from node.status import Point
from tui import format as show

X_TICKS = 4
Y_TICKS = 4


class CurvePlot(PlotextPlot):
    """One curve. Until there is a point it says so, instead of drawing an axis of nothing.

    Args:
        id: of the widget.
        title: what is drawn, e.g. loss.
    """

    def __init__(self, *, id: str, title: str) -> None:
        super().__init__(id=id)
        self._points: tuple[Point, ...] = ()
        self._drawn: tuple[Point, ...] | None = None
        self.border_title = title

    def update_from(self, points: Sequence[Point], title: str) -> None:
        """Draw these points under this title."""
        points = tuple(points)
        self.border_title = f"{title} {show.figure(points[-1].value)}" if points else title
        if points != self._drawn:
            self._points = self._drawn = points
            self._plot_points()
            self.refresh()

    def render(self) -> RenderResult:
        """The plot, or what is missing."""
        if not self._points:
            return Text(f"{show.MISSING}  nothing measured yet", style="dim")
        return super().render()

    def _plot_points(self) -> None:
        self.plt.clear_data()
        if not self._points:
            return
        rounds = [point.round for point in self._points]
        values = [point.value for point in self._points]
        self.plt.plot(rounds, values, marker="braille" if len(values) > 1 else "dot")
        self.plt.xticks(*_ticks(float(min(rounds)), float(max(rounds)), X_TICKS, whole=True))
        self.plt.yticks(*_ticks(min(values), max(values), Y_TICKS, whole=False))


def _ticks(low: float, high: float, number: int, *, whole: bool) -> tuple[list[float], list[str]]:
    """Tick places between low and high, ends included, and what to write there."""
    places = [low + (high - low) * index / (number - 1) for index in range(number)] if high > low else [low]
    if whole:
        places = sorted({float(round(place)) for place in places})
        return places, [f"{place:.0f}" for place in places]
    return places, [show.figure(place) for place in places]
