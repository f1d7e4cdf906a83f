"""The peer table: those we exchange with first, then everybody else."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.coordinate import Coordinate
from textual.widgets import DataTable

from node.status import Exchanges, PeerStatus
from tui import format as show

MAX_ROWS = 200  # a terminal is not the place for thousands; the title says how many there are
ORDER = ("alive", "suspect", "quarantined", "banned", "dead", "left")
SIGNS = {"alive": "●", "suspect": "?", "dead": "✗", "left": "←", "quarantined": "!", "banned": "⊘"}
COLOURS = {
    "alive": "green",
    "suspect": "yellow",
    "dead": "red",
    "left": "dim",
    "quarantined": "yellow",
    "banned": "red",
}
COLUMNS = (
    ("peer", 9), ("state", 14), ("edge", 5), ("round", 6), ("rtt", 7), ("sent", 7), ("received", 9), ("done", 6), ("score", 7),
    ("seen", 7),
)  # fmt: skip


class PeerTable(DataTable[Text]):
    """One row per peer; the arrow keys scroll it."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, cursor_type="row", cell_padding=0, zebra_stripes=True)
        self._shown: tuple[PeerStatus, ...] | None = None
        self.border_title = "peers"

    def on_mount(self) -> None:
        """The columns never change."""
        for name, width in COLUMNS:
            self.add_column(name, key=name, width=width)

    def update_from(self, peers: Sequence[PeerStatus], exchanges: Exchanges | None) -> None:
        """Show these peers, keeping the place a person has scrolled to."""
        rows = tuple(sorted(peers, key=_rank))[:MAX_ROWS]
        self.border_title = f"peers {len(peers):,}" + (f", {MAX_ROWS} shown" if len(peers) > MAX_ROWS else "")
        self.border_subtitle = _ended(exchanges)
        if rows == self._shown:
            return
        before = self._shown or ()
        self._shown = rows
        if [row.peer for row in before] == [row.peer for row in rows]:
            for number, (old, new) in enumerate(zip(before, rows, strict=True)):
                for column, (was, now) in enumerate(zip(_cells(old), _cells(new), strict=True)):
                    if was != now:
                        self.update_cell_at(Coordinate(number, column), now)
            return
        place = self.cursor_row
        self.clear()
        for row in rows:
            self.add_row(*_cells(row), key=row.peer)
        self.move_cursor(row=min(place, max(0, len(rows) - 1)))


def _ended(exchanges: Exchanges | None) -> str:
    if exchanges is None:
        return f"exchanges {show.MISSING}"
    counts = f"{exchanges.committed:,} done, {exchanges.aborted:,} aborted, {exchanges.busy:,} busy"
    return f"exchanges {counts}, {exchanges.timeout:,} timed out"


def _rank(peer: PeerStatus) -> tuple[bool, int, str]:
    return (not peer.edge, ORDER.index(peer.state), peer.peer)


def _cells(peer: PeerStatus) -> tuple[Text, ...]:
    newcomer = peer.state == "alive" and peer.standing == "probation" and not peer.trusted
    state = Text("○ probation") if newcomer else Text(f"{SIGNS[peer.state]} {peer.state}", style=COLOURS[peer.state])
    score = Text(f"{peer.score:.1f}", style="bold red" if peer.score else "")
    return (
        Text(show.short(peer.peer)),
        state,
        Text("yes" if peer.edge else "no"),
        Text(show.count(peer.round)),
        Text(show.latency(peer.rtt_s)),
        Text(show.size(peer.bytes_sent)),
        Text(show.size(peer.bytes_received)),
        Text(show.count(peer.committed)),
        score,
        Text(show.age(peer.last_seen_s)),
    )
