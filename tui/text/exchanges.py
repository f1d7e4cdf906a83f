"""Exchanges that ended and those under way, with one peer or with all."""

import time

from starling.node.status import format as show
from starling.node.status.snapshot import StatusSnapshot, Transaction, Transfer
from starling.tui.drawing.palette import OUTCOME_SIGNS
from starling.tui.text.cell import Cell
from starling.tui.view import View

ALL = ""
COLUMNS = ("ended", "no.", "round", "outcome", "by", "sent", "recv", "kept", "time")


def row(each: Transaction) -> tuple[Cell, ...]:
    """Return a cell for each column."""
    sign, role = OUTCOME_SIGNS[each.outcome]
    return (
        Cell(time.strftime("%H:%M:%S", time.localtime(each.time_s)), "dim"),
        Cell(str(each.number)),
        Cell(str(each.round)),
        Cell(f"{sign} {each.outcome}", role),
        Cell("we" if each.asked else "it"),
        Cell(show.size(each.bytes_sent)),
        Cell(show.size(each.bytes_received)),
        Cell(show.share(each.clip)),
        Cell(show.latency(each.seconds)),
    )


def under_way(each: Transfer, view: View) -> str:
    """Return a line on an exchange that is in progress."""
    return f"⇄ {each.kind} with {view.label(each.peer)} for {show.duration(each.seconds)}: {show.progress(each)}"


def met(snapshot: StatusSnapshot) -> list[str]:
    """Return the peers with an edge or an exchange, sorted by id."""
    edges = {peer.peer for peer in snapshot.peers if peer.edge}
    return sorted(edges | {each.peer for each in snapshot.transactions} | {each.peer for each in snapshot.transfers})


def last(snapshot: StatusSnapshot, peer: str) -> str:
    """Return how long ago the last exchange with a peer, or with any for ALL, ended."""
    times = [each.time_s for each in snapshot.transactions if peer in (ALL, each.peer)]
    return show.age(snapshot.time_s - max(times)) if times else show.MISSING
