"""Lines that grow at the bottom: scrolls, and follows the newest while scrolled to the end. Draws only visible lines."""

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
        """Follow the newest line, unless scrolled back."""
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
        """Lines are as wide as the widget."""
        self._measure()

    def _measure(self) -> None:
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._lines))

    def render_line(self, y: int) -> Strip:
        """One visible line."""
        return strip_of(self, self._lines, y + self.scroll_offset.y, self.scrollable_content_region.width)
