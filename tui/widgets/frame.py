"""The lines around every page: problem, tabs, node selector, timeline of a replay."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.app import RenderResult
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from starling.node.status import format as show
from starling.tui.replay import Position
from starling.tui.source import Reading
from starling.tui.text.health import problem, troubled
from starling.tui.view import View

TABS = (
    ("1", "Node", "node"),
    ("2", "Swarm", "swarm"),
    ("3", "Peers", "peers"),
    ("4", "Events", "events"),
    ("5", "Edge", "edge"),
    ("?", "Help", "help"),
)


class Clicked(Message):
    """A click that triggers an action of the app, with arguments."""

    def __init__(self, action: str, *arguments: str | float) -> None:
        super().__init__()
        self.action, self.arguments = action, arguments


class Problem(Static):
    """The problem of the chosen node in one to three lines; hidden without one."""

    def __init__(self) -> None:
        super().__init__(id="problem", markup=False)
        self.display = False
        self._shown: str | None = None

    def update_from(self, view: View) -> None:
        """Show the connection's problem, else the node's."""
        text = problem(view)
        if text != self._shown:
            self._shown = text
            self.display = text is not None
            self.update(Text(f"! {show.clean(text)}") if text is not None else Text())


class TabBar(Widget):
    """The pages by number, the one named `opened` in brackets; a click opens one."""

    def __init__(self, opened: str) -> None:
        super().__init__(id="tabs")
        self._opened = opened

    def render(self) -> RenderResult:
        text = Text(no_wrap=True)
        for key, title, name in TABS:
            label = f"[{key} {title}]" if name == self._opened else f" {key} {title} "
            text.append(label, style="bold reverse" if name == self._opened else "")
        return text

    def on_click(self, event: events.Click) -> None:
        end = 1  # the padding
        for key, title, name in TABS:
            end += len(key) + len(title) + 3
            if event.x < end:
                self.post_message(Clicked("open", name))
                return


class NodeSelector(Widget):
    """The nodes in one line, the chosen one in brackets, those with a problem marked; hidden while there is only one."""

    def __init__(self) -> None:
        super().__init__(id="selector")
        self._labels: list[str] = []
        self._selected = 0

    def update_from(self, readings: Sequence[Reading], selected: int) -> None:
        """Show the names; a `!` follows the name of a node with a problem."""
        self.display = len(readings) > 1
        names = show.labels({str(place): reading.name for place, reading in enumerate(readings)})
        labels = [names[str(place)] + ("!" if troubled(each) else "") for place, each in enumerate(readings)]
        if (labels, selected) != (self._labels, self._selected):
            self._labels, self._selected = labels, selected
            self.refresh()

    def render(self) -> RenderResult:
        """Draw as many names around the chosen one as fit."""
        if not self._labels:
            return Text()
        count = f"node {self._selected + 1}/{len(self._labels)} "
        first, last = self._window(self.size.width - cell_len(count) - 4)
        line = Text(count, no_wrap=True, style="dim")
        line.append("← " if first > 0 else "")
        for index in range(first, last + 1):
            chosen, label = index == self._selected, self._labels[index]
            line.append(f"[{label}]" if chosen else f" {label} ", style="bold" if chosen else "dim")
        line.append(" →" if last < len(self._labels) - 1 else "")
        return line

    def _window(self, width: int) -> tuple[int, int]:
        """Return the first and last index around the chosen one: add one after it and one before it alternately, while they fit."""
        widths = [cell_len(label) + 2 for label in self._labels]
        first = last = self._selected
        width -= widths[first]
        while True:
            if after := last + 1 < len(widths) and widths[last + 1] <= width:
                last += 1
                width -= widths[last]
            if before := first > 0 and widths[first - 1] <= width:
                first -= 1
                width -= widths[first]
            if not after and not before:
                return first, last


class Timeline(Widget):
    """Play or pause, time, slider, length and speed of a replay, each to click; hidden without one."""

    def __init__(self) -> None:
        super().__init__(id="timeline")
        self._position: Position | None = None
        self._drawn = ""
        self._slider = (0, 0)  # first cell and number of cells
        self.display = False

    def update_from(self, view: View) -> None:
        self._position = view.position
        self.display = view.position is not None
        if self.display and self._line() != self._drawn:
            self.refresh()

    def render(self) -> RenderResult:
        self._drawn = self._line()
        return Text(self._drawn, no_wrap=True, style="bold")

    def _line(self) -> str:
        at = self._position
        if at is None:
            return ""
        before = f"{'▶' if at.playing else '‖'} space  {show.clock(at.at_s)} "
        after = f" {show.clock(at.length_s)}  x {at.speed:>2}x"
        width = max(3, self.content_size.width - len(before) - len(after))
        place = min(width - 1, int(at.fraction * width))
        self._slider = (len(before), width)
        return f"{before}{'━' * place}●{'─' * (width - place - 1)}{after}"

    def on_click(self, event: events.Click) -> None:
        """Left of the slider is play and pause, right of it the speed."""
        first, width = self._slider
        cell = event.x - 1 - first  # the padding
        if cell < 0:
            self.post_message(Clicked("replay", "toggle"))
        elif cell >= width:
            self.post_message(Clicked("replay", "faster"))
        else:
            self.post_message(Clicked("replay", "seek", cell / max(1, width - 1)))
