"""The peers of one node in a table to sort; enter shows all figures of one."""

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from starling.node.status import format as show
from starling.node.status.snapshot import PeerStatus
from starling.tui.drawing.palette import PEER_SIGNS
from starling.tui.screens.page import Page
from starling.tui.view import View
from starling.tui.widgets.lines import entitle
from starling.tui.widgets.rows import MAX_ROWS, Row, Rows, cut

STATES = ("alive", "suspect", "quarantined", "banned", "dead", "left")
UNKNOWN = math.inf
UP, DOWN = "▲", "▼"


def _most(value: float | None) -> float:
    """Sorts the highest first and unknown last."""
    return UNKNOWN if value is None else -value


def _state(peer: PeerStatus, view: View) -> Text:
    if peer.state == "alive" and peer.standing == "probation" and not peer.trusted:
        return Text("○ probation", style=view.style("plain"))
    sign, role = PEER_SIGNS[peer.state]
    return Text(f"{sign} {peer.state}", style=view.style(role))


class Column(NamedTuple):
    """A column: name, least width in cells, sort key, sign of that order, and the text of a cell."""

    name: str
    width: int
    order: Callable[[PeerStatus], tuple[object, ...]]
    sign: str
    cell: Callable[[PeerStatus, View], str | Text]


COLUMNS = (
    Column("peer", 9, lambda peer: (show.short(peer.peer),), UP, lambda peer, view: view.label(peer.peer)),
    Column("state", 14, lambda peer: (STATES.index(peer.state),), UP, _state),
    Column(
        "edge", 5, lambda peer: (not peer.edge, STATES.index(peer.state)), DOWN, lambda peer, _: "yes" if peer.edge else "no"
    ),
    Column(
        "standing", 11, lambda peer: (not peer.trusted, peer.standing), UP, lambda peer, _: "trusted" if peer.trusted else peer.standing
    ),
    Column(
        "score", 6, lambda peer: (_most(peer.score),), DOWN,
        lambda peer, view: Text(f"{peer.score:.1f}", style=view.style("bad" if peer.score else "plain")),
    ),
    Column("staleness", 10, lambda peer: (_most(peer.staleness),), DOWN, lambda peer, _: show.share(peer.staleness)),
    Column("rtt", 7, lambda peer: (_most(peer.rtt_s),), DOWN, lambda peer, _: show.latency(peer.rtt_s)),
    Column("sent", 7, lambda peer: (-peer.bytes_sent,), DOWN, lambda peer, _: show.size(peer.bytes_sent)),
    Column("recv", 7, lambda peer: (-peer.bytes_received,), DOWN, lambda peer, _: show.size(peer.bytes_received)),
    Column("clipped", 8, lambda peer: (_most(peer.clipped),), DOWN, lambda peer, _: show.share(peer.clipped)),
    Column("round", 8, lambda peer: (_most(peer.round),), DOWN, lambda peer, _: show.count(peer.round)),
    Column("committed", 10, lambda peer: (-peer.committed,), DOWN, lambda peer, _: show.count(peer.committed)),
    Column("contribution", 13, lambda peer: (-peer.contribution,), DOWN, lambda peer, _: f"{peer.contribution:.1f}"),
    Column("faults", 7, lambda peer: (-peer.faults,), DOWN, lambda peer, _: show.count(peer.faults)),
    Column(
        "last seen", 10, lambda peer: (UNKNOWN if peer.last_seen_s is None else peer.last_seen_s,), UP,
        lambda peer, _: show.age(peer.last_seen_s),
    ),
    Column(
        "invited by", 11, lambda peer: (not peer.inviter, show.short(peer.inviter)), UP,
        lambda peer, view: view.label(peer.inviter) if peer.inviter else show.MISSING,
    ),
)  # fmt: skip
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
        yield Rows(id="peers", title="peers", columns=[(column.name, column.width) for column in COLUMNS])

    def draw_body(self, view: View) -> None:
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
        """Show all figures of the peer under the cursor."""
        chosen = self.query_one(Rows).chosen
        found = [peer for peer in (self._view.snapshot.peers if self._view.snapshot else ()) if peer.peer == chosen]
        if found:
            self.app.push_screen(PeerScreen(found[0], self._view.label))

    def action_sort(self) -> None:
        """By the next column."""
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
    cells = (column.cell(peer, view) for column in COLUMNS)
    return peer.peer, tuple(Text(cell) if isinstance(cell, str) else cell for cell in cells)


class PeerScreen(ModalScreen[None]):
    """All figures of one peer, as it was when this was opened, over the page."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss", "close", key_display="esc"),
        Binding("y", "app.copy_peer", "copy its id"),
    ]

    def __init__(self, peer: PeerStatus, label: Callable[[str], str] = show.short) -> None:
        super().__init__()
        self.peer = peer
        self._label = label

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="details") as box:
            entitle(box, f"peer {self._label(self.peer.peer)}")
            yield Static(_details(self.peer), markup=False)
        yield Footer(show_command_palette=False)


def _details(peer: PeerStatus) -> str:
    sign, _ = PEER_SIGNS[peer.state]
    shut_out = f", for {show.duration(peer.shut_out_s)} more" if peer.shut_out_s is not None else ""
    rows = (
        ("id", show.clean(peer.peer)),
        ("state", f"{sign} {peer.state}, {'with' if peer.edge else 'without'} an edge"),
        ("standing", f"{peer.standing}{', trusted by you' if peer.trusted else ''}{shut_out}"),
        ("reason", show.clean(peer.why)),
        ("score", f"{peer.score:.1f}, faults {show.count(peer.faults)}"),
        ("contribution", f"{peer.contribution:.1f} of 20"),
        ("staleness", f"{show.share(peer.staleness)} of recent exchanges not answered"),
        ("clipped", f"{show.share(peer.clipped)} of recent exchanges"),
        ("round", show.count(peer.round)),
        ("exchanges", f"{show.count(peer.committed)} committed"),
        ("bytes", f"{show.size(peer.bytes_sent)} sent, {show.size(peer.bytes_received)} received"),
        ("round trip", show.latency(peer.rtt_s)),
        ("last seen", f"{show.duration(peer.last_seen_s)} ago" if peer.last_seen_s is not None else show.MISSING),
        ("invited by", show.clean(peer.inviter)),
        ("addresses", "\n             ".join(show.clean(each) for each in peer.addresses) or show.MISSING),
    )
    return "\n".join(f"{name:<12} {words}" for name, words in rows if words)
