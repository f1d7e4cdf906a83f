"""A table that updates only changed cells, and keeps cursor and scroll position when rows are added, removed or moved."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

from rich.cells import cell_len
from rich.text import Text
from textual.coordinate import Coordinate
from textual.widgets import DataTable
from textual.widgets.data_table import RowDoesNotExist

Row = tuple[str, tuple[Text, ...]]  # a key and a cell for every column


class Rows(DataTable[Text]):
    """One row per key. A column, given by its name and minimum width in cells, is as wide as its widest cell."""

    def __init__(self, *, id: str, title: str, columns: Sequence[tuple[str, int]]) -> None:
        super().__init__(id=id, cursor_type="row", cell_padding=0, zebra_stripes=False)
        self._names = tuple(columns)
        self._shown: tuple[Row, ...] = ()
        self._heads: tuple[tuple[str, int], ...] = ()
        self.border_title = title

    def on_mount(self) -> None:
        """Add the columns before the first row."""
        self._rebuild(self._fitted((), {}))

    @property
    def chosen(self) -> str | None:
        """The key under the cursor."""
        return self._shown[self.cursor_row][0] if 0 <= self.cursor_row < len(self._shown) else None

    def show_rows(self, rows: Sequence[Row], marks: Mapping[str, str] = MappingProxyType({})) -> None:
        """Show these in this order, with `marks` behind the names of columns."""
        new, old = tuple(rows), self._shown
        heads = self._fitted(new, marks)
        if new == old and heads == self._heads:
            return
        chosen, scroll = self.chosen, self.scroll_offset
        self._shown = new
        if heads == self._heads and [key for key, _ in new] == [key for key, _ in old]:
            for number, ((_, was), (_, now)) in enumerate(zip(old, new, strict=True)):
                for column, (before, after) in enumerate(zip(was, now, strict=True)):
                    if before != after:
                        self.update_cell_at(Coordinate(number, column), after)
            return
        self._rebuild(heads)
        self.scroll_to(x=scroll.x, y=scroll.y, animate=False, immediate=True)
        with suppress(RowDoesNotExist):
            if chosen is not None:
                self.move_cursor(row=self.get_row_index(chosen), scroll=False)

    def _fitted(self, rows: Sequence[Row], marks: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
        """Return heading and width of each column."""
        heads = []
        for place, (name, least) in enumerate(self._names):
            head = f"{name} {marks[name]}" if name in marks else name
            widest = max((cells[place].cell_len for _, cells in rows), default=0)
            heads.append((head, max(least, cell_len(head) + 1, widest + 1)))
        return tuple(heads)

    def _rebuild(self, heads: tuple[tuple[str, int], ...]) -> None:
        self.clear(columns=heads != self._heads)
        if heads != self._heads:
            self._heads = heads
            for (name, _), (head, width) in zip(self._names, heads, strict=True):
                self.add_column(Text(head), key=name, width=width)
        for key, cells in self._shown:
            self.add_row(*cells, key=key)
