"""The screens by number, the open one in brackets; a click opens one."""

from __future__ import annotations

from rich.text import Text
from textual import events
from textual.app import RenderResult
from textual.message import Message
from textual.widget import Widget

TABS = (
    ("1", "Node", "node"),
    ("2", "Swarm", "swarm"),
    ("3", "Peers", "peers"),
    ("4", "Events", "events"),
    ("5", "Edge", "edge"),
    ("?", "Help", "help"),
)


class TabBar(Widget):
    """One line.

    Args:
        opened: name of the screen it belongs to.
    """

    class Chosen(Message):
        """A person clicked a tab; `name` is its screen's."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, opened: str) -> None:
        super().__init__(id="tabs")
        self._opened = opened

    def render(self) -> RenderResult:
        """All tabs."""
        text = Text(no_wrap=True)
        for key, title, name in TABS:
            label = f"[{key} {title}]" if name == self._opened else f" {key} {title} "
            text.append(label, style="bold reverse" if name == self._opened else "")
        return text

    def on_click(self, event: events.Click) -> None:
        """Open what was clicked."""
        end = 1  # the padding
        for key, title, name in TABS:
            end += len(key) + len(title) + 3
            if event.x < end:
                self.post_message(self.Chosen(name))
                return
