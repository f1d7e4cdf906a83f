"""The screen of events with a filter."""

import time
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from starling.node.status import format as show
from starling.node.status.snapshot import Event
from starling.tui.drawing.palette import LEVEL_SIGNS
from starling.tui.screens.page import Page
from starling.tui.text.events import LEVELS, events_of, passed, words
from starling.tui.view import View
from starling.tui.widgets.lines import Tail, entitle


class EventsScreen(Page):
    """Events of the chosen node, or of all nodes in the order of time."""

    NAME = "events"
    AUTO_FOCUS = "#all-events"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("l", "level", "level"),
        Binding("a", "all_nodes", "nodes"),
        Binding("escape", "unfilter", "clear", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._level = "all"
        self._all_nodes = False
        self._view = View()

    def compose_body(self) -> ComposeResult:
        yield Tail(id="all-events", title="events")
        yield Input(id="filter", placeholder="words to filter by; enter keeps them, escape clears", select_on_focus=False)

    def on_mount(self) -> None:
        self.query_one(Input).display = False

    def draw_body(self, view: View) -> None:
        self._view = view
        filter_text = self.query_one(Input).value
        events = events_of(view, all_nodes=self._all_nodes)
        shown = passed(events, self._level, filter_text)
        tail = self.query_one(Tail)
        of = f" with {filter_text!r}" if filter_text.strip() else ""
        nodes = "all nodes" if self._all_nodes else "this node"
        entitle(tail, f"events {len(shown)} of {len(events)}, {nodes}, level {self._level}{of}")
        lines = [event_line(event, view, node if self._all_nodes else "") for node, event in shown]
        tail.show(lines or [Text(f"{show.MISSING}  nothing to show", style=view.style("dim"))])

    def action_filter(self) -> None:
        box = self.query_one(Input)
        box.display = True
        box.focus()

    def action_unfilter(self) -> None:
        """Clear the filter."""
        box = self.query_one(Input)
        box.value = ""
        self._close_filter()

    def action_level(self) -> None:
        names = [*LEVELS]
        self._level = names[(names.index(self._level) + 1) % len(names)]
        self.draw_body(self._view)

    def action_all_nodes(self) -> None:
        self._all_nodes = not self._all_nodes
        self.draw_body(self._view)

    def on_input_changed(self, _event: Input.Changed) -> None:
        self.draw_body(self._view)

    def on_input_submitted(self, _event: Input.Submitted) -> None:
        self._close_filter()

    def _close_filter(self) -> None:
        box = self.query_one(Input)
        box.display = bool(box.value)
        self.query_one(Tail).focus()


def event_line(event: Event, view: View, node: str = "") -> Text:
    """Return one event's line; `node` is its node's name if several are shown."""
    when = time.strftime("%H:%M:%S", time.localtime(event.time_s))
    sign, role = LEVEL_SIGNS[event.level]
    line = Text(no_wrap=True, end="")
    line.append(f"{when} ", style=view.style("dim"))
    if node:
        line.append(f"{show.clean(node)} ", style=view.style("own"))
    line.append(f"{sign} {words(event, view)}", style=view.style(role))
    return line
