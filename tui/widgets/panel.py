"""Text in a fixed place. Of it only those lines are drawn again that have changed: drawing is what a look at a node costs."""

from __future__ import annotations

from rich.text import Text
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from starling.tui.widgets.lines import strip_of


class Panel(Widget):
    """Some lines; what does not fit is cut.

    Args:
        id: of the widget.
        title: on its border, if the style sheet gives it one.
    """

    class Resized(Message):
        """It has another size: what is fitted to its size should be drawn again."""

    def __init__(self, *, id: str, title: str = "") -> None:
        super().__init__(id=id)
        self._lines: tuple[Text, ...] = ()
        self.border_title = title

    def on_resize(self) -> None:
        """Say so."""
        self.post_message(self.Resized())

    def show(self, text: Text) -> None:
        """Draw these lines."""
        before, self._lines = self._lines, tuple(text.split("\n", allow_blank=True))
        lines, width = self._lines, self.size.width
        changed = [
            Region(0, place, width, 1)
            for place in range(max(len(before), len(lines)))
            if place >= min(len(before), len(lines)) or before[place] != lines[place]
        ]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        """One line, or nothing below the last."""
        return strip_of(self, self._lines, y, self.size.width)
