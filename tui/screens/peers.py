"""The peers of one node: how they stand, sorted as one likes, everything about one of them on enter."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

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
COLUMNS = (
    ("peer", 9), ("state", 14), ("standing", 11), ("score", 6), ("late", 6), ("rtt", 7), ("sent", 7), ("got", 7), ("clip", 6),
    ("edge", 5), ("round", 8), ("done", 7), ("merit", 6), ("faults", 7), ("seen", 7), ("invited by", 10),
)  # fmt: skip
UNKNOWN = math.inf


def _most(value: float | None) -> float:
    """The highest first, what is not known last."""
    return UNKNOWN if value is None else -value


SORTS: dict[str, Callable[[PeerStatus], tuple[object, ...]]] = {
    "edge": lambda peer: (not peer.edge, STATES.index(peer.state)),
    "peer": lambda peer: (show.short(peer.peer),),
    "state": lambda peer: (STATES.index(peer.state),),
    "standing": lambda peer: (not peer.trusted, peer.standing),
    "score": lambda peer: (_most(peer.score),),
    "late": lambda peer: (_most(peer.staleness),),
    "rtt": lambda peer: (_most(peer.rtt_s),),
    "sent": lambda peer: (-peer.bytes_sent,),
    "got": lambda peer: (-peer.bytes_received,),
    "clip": lambda peer: (_most(peer.clipped),),
    "round": lambda peer: (_most(peer.round),),
    "done": lambda peer: (-peer.committed,),
    "merit": lambda peer: (-peer.contribution,),
    "faults": lambda peer: (-peer.faults,),
    "seen": lambda peer: (UNKNOWN if peer.last_seen_s is None else peer.last_seen_s,),
    "invited by": lambda peer: (not peer.inviter, show.short(peer.inviter)),
}


class PeersScreen(Page):
    """One table."""

    NAME = "peers"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "details", "details"),
        Binding("s", "sort", "sort"),
        Binding("r", "turn", "reverse"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._sort = "edge"
        self._turned = False
        self._view = View()

    def compose_body(self) -> ComposeResult:
        """The table."""
        yield Rows(id="peers", title="peers", columns=COLUMNS)

    def draw_body(self, view: View) -> None:
        """Draw the chosen node's peers."""
        self._view = view
        peers = view.snapshot.peers if view.snapshot is not None else ()
        rows = sorted(sorted(peers, key=lambda peer: peer.peer), key=SORTS[self._sort])[:: -1 if self._turned else 1]
        table = self.query_one(Rows)
        number = f"{len(peers):,}" if peers else show.MISSING
        entitle(
            table,
            f"peers {number}{cut(len(peers))}, by {self._sort}{' reversed' if self._turned else ''}",
            f"exchanges {show.ended(view.snapshot.exchanges) if view.snapshot is not None else show.MISSING}",
        )
        table.show_rows([_row(peer, view) for peer in rows[:MAX_ROWS]])

    def peer_to_copy(self, view: View) -> str | None:
        """The peer under the cursor."""
        return self.query_one(Rows).chosen

    def action_details(self) -> None:
        """Everything about the peer under the cursor."""
        chosen = self.query_one(Rows).chosen
        found = [peer for peer in (self._view.snapshot.peers if self._view.snapshot else ()) if peer.peer == chosen]
        if found:
            self.app.push_screen(PeerScreen(found[0]))

    def action_sort(self) -> None:
        """By the next column."""
        names = [*SORTS]
        self._sort_by(names[(names.index(self._sort) + 1) % len(names)], turned=False)

    def action_turn(self) -> None:
        """The other way round."""
        self._sort_by(self._sort, turned=not self._turned)

    def on_data_table_row_selected(self, _event: DataTable.RowSelected) -> None:
        """Enter, or a click on the row under the cursor."""
        self.action_details()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """A click on a column's name sorts by it; a second one the other way round."""
        name = str(event.column_key.value)
        self._sort_by(name, turned=name == self._sort and not self._turned)

    def _sort_by(self, name: str, *, turned: bool) -> None:
        self._sort, self._turned = name, turned
        self.draw_body(self._view)


def _row(peer: PeerStatus, view: View) -> Row:
    sign, role = PEER_SIGNS[peer.state]
    newcomer = peer.state == "alive" and peer.standing == "probation" and not peer.trusted
    return peer.peer, (
        Text(view.label(peer.peer)),
        Text("○ probation" if newcomer else f"{sign} {peer.state}", style=view.style("plain" if newcomer else role)),
        Text("trusted" if peer.trusted else peer.standing),
        Text(f"{peer.score:.1f}", style=view.style("bad" if peer.score else "plain")),
        Text(show.share(peer.staleness)),
        Text(show.latency(peer.rtt_s)),
        Text(show.size(peer.bytes_sent)),
        Text(show.size(peer.bytes_received)),
        Text(show.share(peer.clipped)),
        Text("yes" if peer.edge else "no"),
        Text(show.count(peer.round)),
        Text(show.count(peer.committed)),
        Text(f"{peer.contribution:.1f}"),
        Text(show.count(peer.faults)),
        Text(show.age(peer.last_seen_s)),
        Text(view.label(peer.inviter) if peer.inviter else show.MISSING),
    )
