"""One node at a glance: does it do well, does it help, what does it cost."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container

from tui import format as show
from tui.screens.page import Page
from tui.view import View
from tui.widgets.costs import Costs
from tui.widgets.curve import CurvePlot
from tui.widgets.events import event_line
from tui.widgets.headline import Headline
from tui.widgets.tail import Tail


class NodeScreen(Page):
    """Headline, curves, costs, and what happened last where there is room."""

    NAME = "node"

    def compose_body(self) -> ComposeResult:
        """From the most to the least important."""
        yield Headline(id="headline")
        with Container(id="curves"):
            yield CurvePlot(id="loss", title="loss")
            yield CurvePlot(id="value", title="value")
            yield CurvePlot(id="distance", title="consensus distance")
        with Container(id="below"):
            yield Costs(id="costs", title="speed and cost")
            yield Tail(id="last-events", title="events")

    def draw_body(self, view: View) -> None:
        """Draw the chosen node."""
        snapshot = view.snapshot
        metric = show.metric(snapshot.metric) if snapshot is not None else ""
        distance = "consensus distance" if self.has_class("-wide") else "distance"
        self.query_one(Headline).update_from(view)
        self.query_one("#loss", CurvePlot).update_from(snapshot.loss_curve if snapshot else (), "loss", view)
        self.query_one("#value", CurvePlot).update_from(
            snapshot.value_curve if snapshot else (), metric or "value", view
        )
        self.query_one("#distance", CurvePlot).update_from(snapshot.distance_curve if snapshot else (), distance, view)
        self.query_one(Costs).update_from(view)
        tail = self.query_one(Tail)
        if tail.display:
            tail.show([event_line(event, view) for event in (snapshot.events if snapshot else ())])
