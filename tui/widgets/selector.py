"""Which of several nodes is shown: one line, the chosen one in brackets, those with a problem marked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text
from textual.app import RenderResult
from textual.widget import Widget

from starling.node.status import format as show
from starling.tui.source import Reading


class NodeSelector(Widget):
    """Hidden while there is only one node."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._labels: list[str] = []
        self._selected = 0

    def update_from(self, readings: Sequence[Reading], selected: int) -> None:
        """Show these names; a `!` follows the name of a node with a problem."""
        self.display = len(readings) > 1
        names = show.labels({str(place): reading.name for place, reading in enumerate(readings)})
        labels = [names[str(place)] + ("!" if _troubled(each) else "") for place, each in enumerate(readings)]
        if (labels, selected) != (self._labels, self._selected):
            self._labels, self._selected = labels, selected
            self.refresh()

    def render(self) -> RenderResult:
        """As many names around the chosen one as fit."""
        if not self._labels:
            return Text()
        count = f"node {self._selected + 1}/{len(self._labels)} "
        first, last = self._window(self.size.width - cell_len(count) - 4)
        line = Text(count, no_wrap=True, style="dim")
        line.append("← " if first > 0 else "")
        for index in range(first, last + 1):
            chosen = index == self._selected
            line.append(
                f"[{self._labels[index]}]" if chosen else f" {self._labels[index]} ", style="bold" if chosen else "dim"
            )
        line.append(" →" if last < len(self._labels) - 1 else "")
        return line

    def _window(self, room: int) -> tuple[int, int]:
        first = last = self._selected
        room -= cell_len(self._labels[first]) + 2
        while True:
            after = last + 1 < len(self._labels) and cell_len(self._labels[last + 1]) + 2 <= room
            if after:
                last += 1
                room -= cell_len(self._labels[last]) + 2
            before = first > 0 and cell_len(self._labels[first - 1]) + 2 <= room
            if before:
                first -= 1
                room -= cell_len(self._labels[first]) + 2
            if not after and not before:
                return first, last


def _troubled(reading: Reading) -> bool:
    return (reading.trouble is not None and not reading.ended) or (
        reading.snapshot is not None and reading.snapshot.problem is not None
    )
