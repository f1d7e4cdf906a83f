"""One node at a glance: health, curves, cost."""

from textual.app import ComposeResult
from textual.containers import Container

from starling.node.status import format as show
from starling.tui.drawing.axes import is_bounded
from starling.tui.screens.events import event_line
from starling.tui.screens.page import Page
from starling.tui.view import View
from starling.tui.widgets.costs import Costs
from starling.tui.widgets.curve import CurvePlot
from starling.tui.widgets.headline import Headline
from starling.tui.widgets.lines import Tail


class NodeScreen(Page):
    """Headline, curves, costs, and the last events if they fit."""

    NAME = "node"

    def compose_body(self) -> ComposeResult:
        yield Headline(id="headline")
        with Container(id="curves"):
            yield CurvePlot(id="loss", title="loss")
            yield CurvePlot(id="value", title="value")
            yield CurvePlot(id="distance", title="consensus distance")
        with Container(id="below"):
            yield Costs(id="costs", title="speed and cost")
            yield Tail(id="last-events", title="events")

    def draw_body(self, view: View) -> None:
        snapshot = view.snapshot
        metric = show.metric(snapshot.metric) if snapshot is not None else ""
        titles = ("loss", metric or "value", "consensus distance" if self.has_class("-wide") else "distance")
        curves = (snapshot.loss_curve, snapshot.value_curve, snapshot.distance_curve) if snapshot else ((), (), ())
        self.query_one(Headline).update_from(view)
        for plot, points, title in zip(self.query(CurvePlot), curves, titles, strict=True):
            plot.update_from(points, title, view, bounded=plot.id == "value" and is_bounded(metric))
        self.query_one(Costs).update_from(view)
        tail = self.query_one(Tail)
        if tail.display:
            tail.show([event_line(event, view) for event in (snapshot.events if snapshot else ())])
