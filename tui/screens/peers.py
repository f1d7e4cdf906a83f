"""The peers of one node in a table to sort; enter shows all figures of one."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from starling.node.status import format as show
from starling.node.status.snapshot import PeerStatus
from starling.tui.screens.page import Page
from starling.tui.text.cell import MAX_ROWS, cut
from starling.tui.text.peers import BY_NAME, COLUMNS, DOWN, UP, details, ordered, row
from starling.tui.view import View
from starling.tui.widgets.lines import entitle
from starling.tui.widgets.rows import Row, Rows


class PeersScreen(Page):
    """The table of peers."""

    NAME = "peers"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "details", "details"),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._sort = "edge"
        self._reversed = False
        self._view = View()

    def compose_body(self) -> ComposeResult:
        yield Rows(id="peers", title="peers", columns=[(column.name, column.width) for column in COLUMNS])

    def draw_body(self, view: View) -> None:
        self._view = view
        peers = view.snapshot.peers if view.snapshot is not None else ()
        column = BY_NAME[self._sort]
        rows = ordered(peers, view, self._sort, reverse=self._reversed)
        table = self.query_one(Rows)
        number = f"{len(peers):,}" if peers else show.MISSING
        entitle(
            table,
            f"peers {number}{cut(len(peers))}, by {self._sort}{' reversed' if self._reversed else ''}",
            f"exchanges {show.ended(view.snapshot.exchanges) if view.snapshot is not None else show.MISSING}",
        )
        up = (column.sign == UP) != self._reversed
        table.show_rows([_row(peer, view) for peer in rows[:MAX_ROWS]], {self._sort: UP if up else DOWN})

    def peer_to_copy(self, view: View) -> str | None:
        """Return the peer under the cursor."""
        return self.query_one(Rows).chosen

    def action_details(self) -> None:
        """Show all figures of the peer under the cursor."""
        chosen = self.query_one(Rows).chosen
        rows = [peer for peer in (self._view.snapshot.peers if self._view.snapshot else ()) if peer.peer == chosen]
        if rows:
            self.app.push_screen(PeerScreen(rows[0], self._view))

    def action_sort(self) -> None:
        """Sort by the next column."""
        names = [*BY_NAME]
        self._sort_by(names[(names.index(self._sort) + 1) % len(names)], reverse=False)

    def action_reverse(self) -> None:
        self._sort_by(self._sort, reverse=not self._reversed)

    def on_data_table_row_selected(self, _event: DataTable.RowSelected) -> None:
        """Enter, or a click on the row under the cursor."""
        self.action_details()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """A click on a column's name sorts by it; a second one reverses the order."""
        name = str(event.column_key.value)
        self._sort_by(name, reverse=name == self._sort and not self._reversed)

    def _sort_by(self, name: str, *, reverse: bool) -> None:
        self._sort, self._reversed = name, reverse
        self.draw_body(self._view)


def _row(peer: PeerStatus, view: View) -> Row:
    return peer.peer, tuple(Text(cell.text, style=view.style(cell.role)) for cell in row(peer, view))


class PeerScreen(ModalScreen[None]):
    """All figures of one peer, as they were when this was opened, in front of the page."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss", "close", key_display="esc"),
        Binding("y", "app.copy_peer", "copy its id"),
    ]

    def __init__(self, peer: PeerStatus, view: View) -> None:
        super().__init__()
        self.peer = peer
        self._view = view

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="details") as box:
            entitle(box, f"peer {self._view.label(self.peer.peer)}")
            rows = details(self.peer, self._view)
            lines = (f"{name:<12} {words.replace(chr(10), chr(10) + ' ' * 13)}" for name, words in rows)
            yield Static("\n".join(lines), markup=False)
        yield Footer(show_command_palette=False)
