"""The peers of one node in a table to sort; enter shows all that is known about one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from starling.node.status import format as show
from starling.node.status.snapshot import PeerStatus
from starling.tui.drawing.palette import PEER_SIGNS
from starling.tui.screens.page import Page
from starling.tui.screens.peer import PeerScreen
from starling.tui.view import View
from starling.tui.widgets.rows import MAX_ROWS, Row, Rows, cut
from starling.tui.widgets.titles import entitle

STATES = ("alive", "suspect", "quarantined", "banned", "dead", "left")
UNKNOWN = math.inf
UP, DOWN = "▲", "▼"


def _most(value: float | None) -> float:
    """The highest first, what is not known last."""
    return UNKNOWN if value is None else -value


class Column(NamedTuple):
    """One column: its name, its least width in cells, the order it sorts by, and the sign of that order."""

    name: str
    width: int
    order: Callable[[PeerStatus], tuple[object, ...]]
    sign: str


COLUMNS = (
    Column("peer", 9, lambda peer: (show.short(peer.peer),), UP),
    Column("state", 14, lambda peer: (STATES.index(peer.state),), UP),
    Column("edge", 5, lambda peer: (not peer.edge, STATES.index(peer.state)), DOWN),
    Column("standing", 11, lambda peer: (not peer.trusted, peer.standing), UP),
    Column("score", 6, lambda peer: (_most(peer.score),), DOWN),
    Column("staleness", 10, lambda peer: (_most(peer.staleness),), DOWN),
    Column("rtt", 7, lambda peer: (_most(peer.rtt_s),), DOWN),
    Column("sent", 7, lambda peer: (-peer.bytes_sent,), DOWN),
    Column("recv", 7, lambda peer: (-peer.bytes_received,), DOWN),
    Column("clipped", 8, lambda peer: (_most(peer.clipped),), DOWN),
    Column("round", 8, lambda peer: (_most(peer.round),), DOWN),
    Column("committed", 10, lambda peer: (-peer.committed,), DOWN),
    Column("contribution", 13, lambda peer: (-peer.contribution,), DOWN),
    Column("faults", 7, lambda peer: (-peer.faults,), DOWN),
    Column("last seen", 10, lambda peer: (UNKNOWN if peer.last_seen_s is None else peer.last_seen_s,), UP),
    Column("invited by", 11, lambda peer: (not peer.inviter, show.short(peer.inviter)), UP),
)
BY_NAME = {column.name: column for column in COLUMNS}


class PeersScreen(Page):
    """One table."""

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
        """The table."""
        yield Rows(id="peers", title="peers", columns=[(column.name, column.width) for column in COLUMNS])

    def draw_body(self, view: View) -> None:
        """Draw the chosen node's peers."""
        self._view = view
        peers = view.snapshot.peers if view.snapshot is not None else ()
        column = BY_NAME[self._sort]
        rows = sorted(sorted(peers, key=lambda peer: peer.peer), key=column.order)[:: -1 if self._reversed else 1]
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
        """The peer under the cursor."""
        return self.query_one(Rows).chosen

    def action_details(self) -> None:
        """Show all that is known about the peer under the cursor."""
        chosen = self.query_one(Rows).chosen
        found = [peer for peer in (self._view.snapshot.peers if self._view.snapshot else ()) if peer.peer == chosen]
        if found:
            self.app.push_screen(PeerScreen(found[0], self._view.label))

    def action_sort(self) -> None:
        """By the next column."""
        names = [*BY_NAME]
        self._sort_by(names[(names.index(self._sort) + 1) % len(names)], reverse=False)

    def action_reverse(self) -> None:
        """The other way round."""
        self._sort_by(self._sort, reverse=not self._reversed)

    def on_data_table_row_selected(self, _event: DataTable.RowSelected) -> None:
        """Enter, or a click on the row under the cursor."""
        self.action_details()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """A click on a column's name sorts by it; a second one the other way round."""
        name = str(event.column_key.value)
        self._sort_by(name, reverse=name == self._sort and not self._reversed)

    def _sort_by(self, name: str, *, reverse: bool) -> None:
        self._sort, self._reversed = name, reverse
        self.draw_body(self._view)


def _row(peer: PeerStatus, view: View) -> Row:
    sign, role = PEER_SIGNS[peer.state]
    newcomer = peer.state == "alive" and peer.standing == "probation" and not peer.trusted
    return peer.peer, (
        Text(view.label(peer.peer)),
        Text("○ probation" if newcomer else f"{sign} {peer.state}", style=view.style("plain" if newcomer else role)),
        Text("yes" if peer.edge else "no"),
        Text("trusted" if peer.trusted else peer.standing),
        Text(f"{peer.score:.1f}", style=view.style("bad" if peer.score else "plain")),
        Text(show.share(peer.staleness)),
        Text(show.latency(peer.rtt_s)),
        Text(show.size(peer.bytes_sent)),
        Text(show.size(peer.bytes_received)),
        Text(show.share(peer.clipped)),
        Text(show.count(peer.round)),
        Text(show.count(peer.committed)),
        Text(f"{peer.contribution:.1f}"),
        Text(show.count(peer.faults)),
        Text(show.age(peer.last_seen_s)),
        Text(view.label(peer.inviter) if peer.inviter else show.MISSING),
    )
