"""Lines of text of which only those that changed are drawn again, as drawing is most of what the terminal UI costs."""

from __future__ import annotations

from rich.text import Text
from textual.geometry import Region, Size
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
        """The panel was resized, and what is fitted to its size should be drawn again."""

    def __init__(self, *, id: str, title: str = "") -> None:
        super().__init__(id=id)
        self._lines: tuple[Text, ...] = ()
        self.border_title = title

    def on_resize(self) -> None:
        """Tell the app."""
        self.post_message(self.Resized())

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many lines as there are, where the style sheet says `height: auto`."""
        return len(self._lines)

    def show(self, text: Text) -> None:
        """Draw these lines."""
        before, self._lines = self._lines, tuple(text.split("\n", allow_blank=True))
        lines, width = self._lines, self.size.width
        if len(before) != len(lines) and self.styles.is_auto_height:
            self.refresh(layout=True)
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
