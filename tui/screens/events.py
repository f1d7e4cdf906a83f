"""What happened: a tail with a filter."""

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
        """The lines, and under them what they are filtered by."""
        yield Tail(id="all-events", title="events")
        yield Input(
            id="filter", placeholder="words to look for; enter keeps them, escape clears", select_on_focus=False
        )

    def on_mount(self) -> None:
        """The filter takes no room until it is asked for."""
        self.query_one(Input).display = False

    def draw_body(self, view: View) -> None:
        """Draw what passes the filter."""
        self._view = view
        words = self.query_one(Input).value
        told = _told(view, all_nodes=self._all_nodes)
        passed = [
            (node, event) for node, event in told if event.level in LEVELS[self._level] and _matches(event, node, words)
        ]
        tail = self.query_one(Tail)
        of = f" with {words!r}" if words.strip() else ""
        nodes = "all nodes" if self._all_nodes else "this node"
        entitle(tail, f"events {len(passed)} of {len(told)}, {nodes}, level {self._level}{of}")
        lines = [event_line(event, view, node if self._all_nodes else "") for node, event in passed]
        tail.show(lines or [Text(f"{show.MISSING}  nothing to show", style=view.style("dim"))])

    def action_filter(self) -> None:
        """Type what to look for."""
        box = self.query_one(Input)
        box.display = True
        box.focus()

    def action_unfilter(self) -> None:
        """Show everything again."""
        box = self.query_one(Input)
        box.value = ""
        self._rest()

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
        """Filter while a person types."""
        self.draw_body(self._view)

    def on_input_submitted(self, _event: Input.Submitted) -> None:
        """Keep it."""
        self._rest()

    def _rest(self) -> None:
        box = self.query_one(Input)
        box.display = bool(box.value)
        self.query_one(Tail).focus()


def _told(view: View, *, all_nodes: bool) -> list[tuple[str, Event]]:
    readings = view.readings if all_nodes else filter(None, (view.reading,))
    told = [(r.name, event) for r in readings if r.snapshot is not None for event in r.snapshot.events]
    return sorted(told, key=lambda each: each[1].time_s)


def _matches(event: Event, node: str, words: str) -> bool:
    """Every word is in the line or in the event's name, in any case."""
    line = f"{node} {event.name} {show.clean(event.text)}".casefold()
    return all(word in line for word in words.casefold().split())
