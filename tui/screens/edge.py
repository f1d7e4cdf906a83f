"""The exchanges with one peer, or with all: those under way and those that ended."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container

from starling.node.status import format as show
from starling.node.status.snapshot import Transaction, Transfer
from starling.tui.drawing.palette import PEER_SIGNS
from starling.tui.screens.page import Page
from starling.tui.text import exchanges
from starling.tui.text.exchanges import ALL, last, met
from starling.tui.view import Throttle, View
from starling.tui.widgets.lines import Panel, Tail, entitle
from starling.tui.widgets.rows import Row, Rows

COLUMNS = (("peer", 10), ("last", 7))
CHOICE = (12, 30)  # cells with the border, at least and at most
LAYOUT = "{:<8} {:>5} {:>6} {:<11} {} {:>7}{:>7}{:>6}{:>7}"
HEAD = LAYOUT.format(*exchanges.COLUMNS)


class EdgeScreen(Page):
    """Peers to choose from, and the chosen one's exchanges."""

    NAME = "edge"

    def __init__(self) -> None:
        super().__init__()
        self._view = View()
        self._throttle = Throttle()

    def compose_body(self) -> ComposeResult:
        yield Rows(id="choice", title="edge", columns=COLUMNS)
        with Container(id="exchanges"):
            yield Panel(id="head")
            yield Tail(id="ended", title="")

    def draw_body(self, view: View) -> None:
        self._view = view
        choice = self.query_one("#choice", Rows)
        rows = _choice(view)
        if self._throttle.due(rows, view):
            choice.show_rows(rows)
            choice.styles.width = _width(rows, wide=self.has_class("-wide"))
        self._draw_exchanges(choice.chosen or ALL)

    def _draw_exchanges(self, peer: str) -> None:
        view, tail = self._view, self.query_one(Tail)
        snapshot = view.snapshot
        shown = [each for each in snapshot.transactions if peer in (ALL, each.peer)] if snapshot is not None else []
        under_way = [each for each in snapshot.transfers if peer in (ALL, each.peer)] if snapshot is not None else []
        box = self.query_one("#exchanges")
        done = sum(each.outcome == "committed" for each in shown)
        title = f"exchanges with {view.label(peer) if peer else 'all peers'}"
        entitle(box, title, f"last {len(shown)}: {done} committed")
        self.query_one("#head", Panel).show(Text(HEAD, style=view.style("strong"), no_wrap=True))
        lines = [*(_line(each, view) for each in shown), *(_under_way(each, view) for each in under_way)]
        tail.show(lines or [Text(f"{show.MISSING}  none known yet", style=view.style("dim"))])

    def on_data_table_row_highlighted(self) -> None:
        self._draw_exchanges(self.query_one("#choice", Rows).chosen or ALL)

    def peer_to_copy(self, view: View) -> str | None:
        """Return the chosen peer; the node itself where all are chosen."""
        return self.query_one("#choice", Rows).chosen or super().peer_to_copy(view)


def _choice(view: View) -> list[Row]:
    """Return the rows to choose from: all peers first, then those with an edge or an exchange, by id."""
    snapshot = view.snapshot
    if snapshot is None:
        return [(ALL, (Text("all peers"), Text(show.MISSING)))]
    states = {peer.peer: peer.state for peer in snapshot.peers}
    rows: list[Row] = [(ALL, (Text("all peers"), Text(last(snapshot, ALL))))]
    for peer in met(snapshot):
        sign, role = PEER_SIGNS[states[peer]] if peer in states else (show.MISSING, "dim")
        cells = Text.assemble((f"{sign} ", view.style(role)), view.label(peer))
        rows.append((peer, (cells, Text(last(snapshot, peer)))))
    return rows


def _width(rows: list[Row], *, wide: bool) -> int:
    """Return the width of the choice with its border: as wide as its names, and the second column if it fits."""
    least, most = CHOICE
    names = max(cells[0].cell_len + 1 for _, cells in rows)
    return min(most, max(least, names + 2 + (COLUMNS[1][1] + 2 if wide else 0)))


def _under_way(each: Transfer, view: View) -> Text:
    return Text(exchanges.under_way(each, view), style=view.style("warn"), no_wrap=True, end="")


def _line(each: Transaction, view: View) -> Text:
    """Return the cells in their columns; those of one color together."""
    when, number, round_cell, outcome, *figures = exchanges.row(each)
    line = Text(no_wrap=True, end="")
    line.append(f"{when.text} ", style=view.style(when.role))
    line.append(f"{number.text:>5} {round_cell.text:>6} ")
    line.append(f"{outcome.text:<11} ", style=view.style(outcome.role))
    by, sent, received, share, took = (cell.text for cell in figures)
    line.append(f"{by} {sent:>7}{received:>7}{share:>6}{took:>7}")
    return line
