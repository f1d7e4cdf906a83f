"""Lines of text: a panel that redraws only lines that changed, since drawing is most of the cost of the terminal UI, and a tail."""

from collections.abc import Iterable, Sequence

from rich.text import Text
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from starling.tui.view import View


def entitle(widget: Widget, title: str, subtitle: str = "") -> None:
    """Set the titles on a widget's border, as plain text and only when changed: Textual redraws for every title and parses markup.

    A subtitle of "" keeps the present one.
    """
    if widget.border_title != Content(title).markup:
        widget.border_title = Text(title)
    if subtitle and widget.border_subtitle != Content(subtitle).markup:
        widget.border_subtitle = Text(subtitle)


def labelled(rows: Iterable[tuple[str, str]], view: View) -> Text:
    """Return a line per row: its name, dim, and its text."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for number, (name, words) in enumerate(rows):
        text.append(f"{chr(10) if number else ''}{name:<9} ", style=view.style("dim"))
        text.append(words)
    return text


def _strip(widget: Widget, lines: Sequence[Text], place: int, width: int) -> Strip:
    """Return the line at `place` in `width` cells, cut where it does not fit; blank below the last."""
    if place >= len(lines):
        return Strip.blank(width, widget.rich_style)
    line = lines[place].copy()
    line.truncate(width, overflow="ellipsis")
    return Strip(line.render(widget.app.console)).adjust_cell_length(width).apply_style(widget.rich_style)


class Panel(Widget):
    """Some lines; overflowing ones are cut. The title is on its border, if the style sheet gives it one."""

    class Resized(Message):
        """The panel was resized: redraw what is fitted to its size."""

    def __init__(self, *, id: str, title: str = "") -> None:
        super().__init__(id=id)
        self._lines: tuple[Text, ...] = ()
        self.border_title = title

    def on_resize(self) -> None:
        self.post_message(self.Resized())

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines, where the style sheet says `height: auto`."""
        return len(self._lines)

    def show(self, text: Text) -> None:
        """Show these lines."""
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
        return _strip(self, self._lines, y, self.size.width)


class Tail(ScrollView, can_focus=True):
    """Lines that grow at the bottom: scrolls, and follows the newest while scrolled to the end. Draws only visible lines."""

    def __init__(self, *, id: str, title: str) -> None:
        super().__init__(id=id)
        self._lines: tuple[Text, ...] = ()
        self.border_title = title

    def on_mount(self) -> None:
        self.anchor()

    def show(self, lines: Sequence[Text]) -> None:
        """Show these, the newest last."""
        lines = tuple(lines)
        if lines == self._lines:
            return
        self._lines = lines
        self.on_resize()
        self.refresh()

    def on_resize(self) -> None:
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._lines))

    def render_line(self, y: int) -> Strip:
        return _strip(self, self._lines, y + self.scroll_offset.y, self.scrollable_content_region.width)
