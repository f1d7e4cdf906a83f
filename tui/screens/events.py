"""Events with a filter."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from starling.node.status import format as show
from starling.node.status.snapshot import Event
from starling.tui.screens.page import Page
from starling.tui.view import View
from starling.tui.widgets.events import event_line
from starling.tui.widgets.tail import Tail
from starling.tui.widgets.titles import entitle

LEVELS = {"all": ("info", "warning", "error"), "warnings": ("warning", "error"), "errors": ("error",)}


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
        """The lines, and the filter below them."""
        yield Tail(id="all-events", title="events")
        yield Input(
            id="filter", placeholder="words to filter by; enter keeps them, escape clears", select_on_focus=False
        )

    def on_mount(self) -> None:
        """The filter is hidden until it is opened."""
        self.query_one(Input).display = False

    def draw_body(self, view: View) -> None:
        """Draw the events that pass the filter."""
        self._view = view
        words = self.query_one(Input).value
        events = _events(view, all_nodes=self._all_nodes)
        passed = [
            (node, event)
            for node, event in events
            if event.level in LEVELS[self._level] and _matches(event, node, words)
        ]
        tail = self.query_one(Tail)
        of = f" with {words!r}" if words.strip() else ""
        nodes = "all nodes" if self._all_nodes else "this node"
        entitle(tail, f"events {len(passed)} of {len(events)}, {nodes}, level {self._level}{of}")
        lines = [event_line(event, view, node if self._all_nodes else "") for node, event in passed]
        tail.show(lines or [Text(f"{show.MISSING}  nothing to show", style=view.style("dim"))])

    def action_filter(self) -> None:
        """Type words to filter by."""
        box = self.query_one(Input)
        box.display = True
        box.focus()

    def action_unfilter(self) -> None:
        """Show everything again."""
        box = self.query_one(Input)
        box.value = ""
        self._close_filter()

    def action_level(self) -> None:
        """The next level."""
        names = [*LEVELS]
        self._level = names[(names.index(self._level) + 1) % len(names)]
        self.draw_body(self._view)

    def action_all_nodes(self) -> None:
        """This node, or all."""
        self._all_nodes = not self._all_nodes
        self.draw_body(self._view)

    def on_input_changed(self, _event: Input.Changed) -> None:
        """Filter while typing."""
        self.draw_body(self._view)

    def on_input_submitted(self, _event: Input.Submitted) -> None:
        """Keep the filter."""
        self._close_filter()

    def _close_filter(self) -> None:
        box = self.query_one(Input)
        box.display = bool(box.value)
        self.query_one(Tail).focus()


def _events(view: View, *, all_nodes: bool) -> list[tuple[str, Event]]:
    readings = view.readings if all_nodes else filter(None, (view.reading,))
    events = [(r.name, event) for r in readings if r.snapshot is not None for event in r.snapshot.events]
    return sorted(events, key=lambda each: each[1].time_s)


def _matches(event: Event, node: str, words: str) -> bool:
    """Whether every word is in the line or the event's name, ignoring case."""
    line = f"{node} {event.name} {show.clean(event.text)}".casefold()
    return all(word in line for word in words.casefold().split())
