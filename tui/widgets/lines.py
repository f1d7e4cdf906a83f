"""One line of text as a widget's strip."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.strip import Strip
from textual.widget import Widget


def strip_of(widget: Widget, lines: Sequence[Text], place: int, width: int) -> Strip:
    """The line at `place` in `width` cells, cut where it does not fit; blank below the last."""
    if place >= len(lines):
        return Strip.blank(width, widget.rich_style)
    line = lines[place].copy()
    line.truncate(width, overflow="ellipsis")
    return Strip(line.render(widget.app.console)).adjust_cell_length(width).apply_style(widget.rich_style)
