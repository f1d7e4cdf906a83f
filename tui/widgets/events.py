"""The tail of what happened: newest at the bottom, as many as there is room for."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.text import Text
from textual.app import RenderResult
from textual.widget import Widget

from node.status import Event
from tui import format as show

SIGNS = {"info": " ", "warning": "!", "error": "✗"}
COLOURS = {"info": "", "warning": "yellow", "error": "bold red"}


class EventTail(Widget):
    """One line per event."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._events: tuple[Event, ...] = ()
        self.border_title = "events"

    def update_from(self, events: Sequence[Event]) -> None:
        """Show these, oldest first."""
        if tuple(events) != self._events:
            self._events = tuple(events)
            self.refresh()

    def render(self) -> RenderResult:
        """The last lines that fit."""
        if not self._events:
            return Text(f"{show.MISSING}  nothing happened yet", style="dim")
        lines = Text(no_wrap=True, overflow="ellipsis")
        for event in self._events[-max(1, self.size.height) :]:
            when = time.strftime("%H:%M:%S", time.localtime(event.time_s))
            lines.append(f"{when} ", style="dim")
            lines.append(f"{SIGNS[event.level]} {show.clean(event.text or event.name)}\n", style=COLOURS[event.level])
        lines.right_crop()
        return lines
