"""Lines that grow at the bottom: scrolls, and follows the newest while a person looks at the end. Only what is seen is drawn."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from starling.tui.widgets.lines import strip_of


class Tail(ScrollView, can_focus=True):
    """One line each.

    Args:
        id: of the widget.
        title: on its border.
    """

    def __init__(self, *, id: str, title: str) -> None:
        super().__init__(id=id)
        self._lines: tuple[Text, ...] = ()
        self.border_title = title

    def on_mount(self) -> None:
        """Whoever scrolls back stays there; at the end it follows again."""
        self.anchor()

    def show(self, lines: Sequence[Text]) -> None:
        """Show these, the newest last."""
        lines = tuple(lines)
        if lines == self._lines:
            return
        self._lines = lines
        self._measure()
        self.refresh()

    def on_resize(self) -> None:
        """Lines are as wide as the window."""
        self._measure()

    def _measure(self) -> None:
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._lines))

    def render_line(self, y: int) -> Strip:
        """One line of what is seen."""
        return strip_of(self, self._lines, y + self.scroll_offset.y, self.scrollable_content_region.width)
