"""A curve with axes: value over rounds."""

import re
from collections.abc import Sequence

from rich.text import Text
from textual_plotext.plot import Plot

from starling.node.status import format as show
from starling.node.status.snapshot import Point
from starling.tui.drawing.axes import X_TICKS, axes, finite
from starling.tui.view import Throttle, View
from starling.tui.widgets.lines import Panel, entitle

TICK = 12  # cells of width that a tick of rounds needs
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
DOTS = re.compile(r"[\u2801-\u28ff•]+")


class CurvePlot(Panel):
    """Draws one curve, or a line of text while it has no point."""

    def __init__(self, *, id: str, title: str) -> None:
        super().__init__(id=id, title=title)
        self._plot = Plot()
        self._throttle = Throttle()

    def update_from(self, points: Sequence[Point], title: str, view: View, *, bounded: bool = False) -> None:
        """Draw points, oldest first, at most every REDRAW_S: three curves cost more than all else on a page.

        `bounded`: values are in [0, 1], and are drawn on an axis of at least LEAST_SPAN.
        """
        points = finite(points)
        if not self._throttle.due((points, title, self.size, view.dark), view):
            return
        entitle(self, f"{title} {show.small(points[-1].value if points else None)}")
        if points:
            self.show(self._picture(points, view, bounded=bounded))
        else:
            self.show(Text(f"{show.MISSING}  not known yet", style=view.style("dim")))

    def _picture(self, points: Sequence[Point], view: View, *, bounded: bool) -> Text:
        plot = self._plot
        of = axes(points, bounded=bounded, x_ticks=min(X_TICKS, max(2, self.size.width // TICK)))
        plot.clear_data()
        plot.plot(of.rounds, of.heights, marker="braille" if len(points) > 1 else "dot")
        plot.xticks(*of.x_ticks)
        plot.ylim(*((of.low, of.high) if bounded else (None, None)))
        plot.yticks(*of.y_ticks)
        plot.plotsize(self.size.width, self.size.height)
        plot._set_size(self.size.width, self.size.height)  # noqa: SLF001 - as PlotextPlot does, or the plot keeps its former size
        plot.theme("clear")  # colors are set below: reading them back from escapes costs as much as plotting
        text = Text(ESCAPES.sub("", plot.build()).rstrip("\n"), no_wrap=True)
        text.highlight_regex(DOTS, view.style("own"))
        return text
