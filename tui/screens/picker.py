"""A table of all nodes from which to choose one."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer

from starling.tui.text import nodes
from starling.tui.view import View
from starling.tui.widgets.lines import entitle
from starling.tui.widgets.rows import Row, Rows

WIDTHS = (10, 11, 9, 9, 8, 8)


class NodePicker(ModalScreen[int | None]):
    """Gives the place of the chosen node, None if it was closed without a choice."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,o", "dismiss(None)", "close", key_display="esc")]

    def __init__(self, view: View) -> None:
        super().__init__()
        self._view = view

    def compose(self) -> ComposeResult:
        with Container(id="picker") as box:
            entitle(box, f"{len(self._view.readings)} nodes, enter chooses")
            yield Rows(id="nodes", title="", columns=tuple(zip(nodes.COLUMNS, WIDTHS, strict=True)))
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        table = self.query_one(Rows)
        table.show_rows(_rows(self._view))
        table.move_cursor(row=self._view.selected)
        table.focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Choose the row on Enter or a click."""
        self.dismiss(event.cursor_row)


def _rows(view: View) -> Sequence[Row]:
    return [(str(place), tuple(Text(cell.text, style=view.style(cell.role)) for cell in row)) for place, row in enumerate(nodes.rows(view))]
