"""The position of a replay: a line that can be clicked. Hidden where nothing is replayed."""

from __future__ import annotations

from rich.text import Text
from textual import events
from textual.app import RenderResult
from textual.message import Message
from textual.widget import Widget

from starling.node.status import format as show
from starling.tui.replay import Position
from starling.tui.view import View


class Timeline(Widget):
    """Play or pause, time, slider, length, speed."""

    class Seek(Message):
        """A person clicked a place; `fraction` is its share of the whole."""

        def __init__(self, fraction: float) -> None:
            super().__init__()
            self.fraction = fraction

    class Toggle(Message):
        """A person clicked play or pause."""

    class Faster(Message):
        """A person clicked the speed."""

    def __init__(self) -> None:
        super().__init__(id="timeline")
        self._position: Position | None = None
        self._drawn = ""
        self._slider = (0, 0)  # first cell and number of cells
        self.display = False

    def update_from(self, view: View) -> None:
        """Show the position."""
        self._position = view.position
        self.display = view.position is not None
        if self.display and self._line() != self._drawn:
            self.refresh()

    def render(self) -> RenderResult:
        """One line."""
        self._drawn = self._line()
        return Text(self._drawn, no_wrap=True, style="bold")

    def _line(self) -> str:
        at = self._position
        if at is None:
            return ""
        before = f"{'▶' if at.playing else '‖'} space  {show.clock(at.at_s)} "
        after = f" {show.clock(at.length_s)}  x {at.speed:>2}x"
        room = max(3, self.content_size.width - len(before) - len(after))
        place = min(room - 1, int(at.fraction * room))
        self._slider = (len(before), room)
        return f"{before}{'━' * place}●{'─' * (room - place - 1)}{after}"

    def on_click(self, event: events.Click) -> None:
        """Left of the slider is play and pause, right of it the speed."""
        first, room = self._slider
        cell = event.x - 1 - first  # the padding
        if cell < 0:
            self.post_message(self.Toggle())
        elif cell >= room:
            self.post_message(self.Faster())
        else:
            self.post_message(self.Seek(cell / max(1, room - 1)))
