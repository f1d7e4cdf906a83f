"""One node at a time: problem, headline, curves, peers, events."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Container
from textual.screen import Screen
from textual.widgets import Footer

from tui.source import Reading
from tui.widgets.curve import CurvePlot
from tui.widgets.events import EventTail
from tui.widgets.headline import Headline
from tui.widgets.peers import PeerTable
from tui.widgets.problem import Problem
from tui.widgets.selector import NodeSelector


class NodeScreen(Screen[None]):
    """Draws the chosen reading; remembers nothing of it."""

    def compose(self) -> ComposeResult:
        """Every widget once; the style sheet places them for the terminal's width."""
        yield Problem(id="problem", markup=False)
        yield NodeSelector(id="selector")
        yield Headline(id="headline", markup=False)
        with Container(id="curves"):
            yield CurvePlot(id="loss", title="loss")
            yield CurvePlot(id="value", title="value")
        with Container(id="lists"):
            yield PeerTable(id="peers")
            yield EventTail(id="events")
        yield Footer(show_command_palette=False)

    def show_node(self, readings: Sequence[Reading], selected: int, *, waiting_for: str, now: float) -> None:
        """Draw the node at `selected`.

        Args:
            readings: all nodes.
            selected: index into them; ignored when there are none.
            waiting_for: what to say while there are none.
            now: unix time, for the age of what is shown.
        """
        reading = readings[selected] if readings else None
        snapshot = reading.snapshot if reading is not None else None
        self.query_one(Problem).update_from(reading, waiting_for, now)
        self.query_one(NodeSelector).update_from(readings, selected)
        self.query_one(Headline).update_from(reading)
        metric = snapshot.metric.replace("_", " ") if snapshot is not None else ""
        self.query_one("#loss", CurvePlot).update_from(snapshot.loss_curve if snapshot else (), "loss")
        self.query_one("#value", CurvePlot).update_from(snapshot.value_curve if snapshot else (), metric or "value")
        self.query_one(PeerTable).update_from(
            snapshot.peers if snapshot else (), snapshot.exchanges if snapshot else None
        )
        self.query_one(EventTail).update_from(snapshot.events if snapshot else ())
