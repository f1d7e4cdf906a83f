"""A table that changes only the cells whose text changed, and keeps a person's place when rows come, go or change places."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from rich.text import Text
from textual.coordinate import Coordinate
from textual.widgets import DataTable
from textual.widgets.data_table import RowDoesNotExist

Row = tuple[str, tuple[Text, ...]]
"""A key and its cells."""


MAX_ROWS = 200
"""A terminal is not the place for thousands; a title says how many there are."""


def cut(count: int) -> str:
    """What a title adds where there are more rows than are shown."""
    return f", {MAX_ROWS} shown" if count > MAX_ROWS else ""


class Rows(DataTable[Text]):
    """One row per key.

    Args:
        id: of the widget.
        title: on its border.
        columns: names and widths in cells; the name is the column's key too.
    """

    def __init__(self, *, id: str, title: str, columns: Sequence[tuple[str, int]]) -> None:
        super().__init__(id=id, cursor_type="row", cell_padding=0, zebra_stripes=False)
        self._names = tuple(columns)
        self._shown: tuple[Row, ...] = ()
        self.border_title = title

    def on_mount(self) -> None:
        """The columns never change."""
        for name, width in self._names:
            self.add_column(name, key=name, width=width)

    @property
    def chosen(self) -> str | None:
        """The key under the cursor."""
        return self._shown[self.cursor_row][0] if 0 <= self.cursor_row < len(self._shown) else None

    def show_rows(self, rows: Sequence[Row]) -> None:
        """Show these in this order."""
        new, old = tuple(rows), self._shown
        if new == old:
            return
        chosen = self.chosen
        self._shown = new
        if [key for key, _ in new] == [key for key, _ in old]:
            for number, ((_, was), (_, now)) in enumerate(zip(old, new, strict=True)):
                for column, (before, after) in enumerate(zip(was, now, strict=True)):
                    if before != after:
                        self.update_cell_at(Coordinate(number, column), after)
            return
        scroll = self.scroll_offset.y
        self.clear()
        for key, cells in new:
            self.add_row(*cells, key=key)
        self.scroll_to(y=scroll, animate=False, immediate=True)
        with suppress(RowDoesNotExist):
            if chosen is not None:
                self.move_cursor(row=self.get_row_index(chosen), scroll=False)
