"""Lines that grow at the bottom: scrolls, and follows the newest while a person looks at the end. Only what is seen is drawn."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.widgets.lines import strip_of


class Tail(ScrollView, can_focus=True):
    """One line each.

    Args:
        id: of the widget.
        title: on its border.
    """

    def __init__(self, *, id: str, title: str) -> None:
        super().__init__(id=id)
        self._lines: tuple[Text, ...] = ()
        self._follows = True
        self.border_title = title

    def show(self, lines: Sequence[Text]) -> None:
        """Show these, the newest last."""
        lines = tuple(lines)
        if lines == self._lines:
            return
        self._lines = lines
        self.virtual_size = Size(self.scrollable_content_region.width, len(lines))
        if self._follows:
            self.scroll_end(animate=False, immediate=True)
        self.refresh()

    def on_resize(self) -> None:
        """A smaller window still shows the newest, if that is what one looked at."""
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._lines))
        if self._follows:
            self.scroll_end(animate=False)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Whoever scrolls back wants to stay there; at the end it follows again."""
        super().watch_scroll_y(old_value, new_value)
        self._follows = new_value >= self.max_scroll_y

    def render_line(self, y: int) -> Strip:
        """One line of what is seen."""
        return strip_of(self, self._lines, y + self.scroll_offset.y, self.scrollable_content_region.width)
