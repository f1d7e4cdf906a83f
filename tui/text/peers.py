"""The peers of a node: columns of a table to sort, and all that is known about one."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from starling.node.status import format as show
from starling.node.status.snapshot import PeerStatus, Transaction
from starling.tui.drawing.palette import PEER_SIGNS
from starling.tui.text.cell import Cell
from starling.tui.view import View

STATES = ("alive", "suspect", "quarantined", "banned", "dead", "left")
UNKNOWN = math.inf
UP, DOWN = "▲", "▼"
LATELY = 8  # exchanges of a sparkline
FAILED = "×"


def _most(value: float | None) -> float:
    """Return a sort key that puts the highest first and unknown last."""
    return UNKNOWN if value is None else -value


def _state(peer: PeerStatus, _view: View) -> Cell:
    if peer.state == "alive" and peer.standing == "probation" and not peer.trusted:
        return Cell("○ probation")
    sign, role = PEER_SIGNS[peer.state]
    return Cell(f"{sign} {peer.state}", role)


class Column(NamedTuple):
    """A column: name, least width in cells, sort key, sign of that order, and the text of a cell."""

    name: str
    width: int
    order: Callable[[PeerStatus, View], tuple[object, ...]]
    sign: str
    cell: Callable[[PeerStatus, View], str | Cell]


COLUMNS = (
    Column("peer", 9, lambda peer, _: (show.short(peer.peer),), UP, lambda peer, view: view.label(peer.peer)),
    Column("state", 12, lambda peer, _: (STATES.index(peer.state),), UP, _state),
    Column("edge", 5, lambda peer, _: (not peer.edge, STATES.index(peer.state)), DOWN, lambda peer, _: "yes" if peer.edge else "no"),
    Column(
        "lately", 9, lambda peer, view: (-lately(peer, view).count(FAILED),), DOWN, lambda peer, view: lately(peer, view) or show.MISSING
    ),
    Column(
        "standing", 11, lambda peer, _: (not peer.trusted, peer.standing), UP, lambda peer, _: "trusted" if peer.trusted else peer.standing
    ),
    Column(
        "score", 6, lambda peer, _: (_most(peer.score),), DOWN, lambda peer, _: Cell(f"{peer.score:.1f}", "bad" if peer.score else "plain")
    ),
    Column("rtt", 7, lambda peer, _: (_most(peer.rtt_s),), DOWN, lambda peer, _: show.latency(peer.rtt_s)),
    Column("sent", 7, lambda peer, _: (-peer.bytes_sent,), DOWN, lambda peer, _: show.size(peer.bytes_sent)),
    Column("recv", 7, lambda peer, _: (-peer.bytes_received,), DOWN, lambda peer, _: show.size(peer.bytes_received)),
    Column("staleness", 10, lambda peer, _: (_most(peer.staleness),), DOWN, lambda peer, _: show.share(peer.staleness)),
    Column("clipped", 8, lambda peer, _: (_most(peer.clipped),), DOWN, lambda peer, _: show.share(peer.clipped)),
    Column("round", 8, lambda peer, _: (_most(peer.round),), DOWN, lambda peer, _: show.count(peer.round)),
    Column("committed", 10, lambda peer, _: (-peer.committed,), DOWN, lambda peer, _: show.count(peer.committed)),
    Column("contribution", 13, lambda peer, _: (-peer.contribution,), DOWN, lambda peer, _: f"{peer.contribution:.1f}"),
    Column("faults", 7, lambda peer, _: (-peer.faults,), DOWN, lambda peer, _: show.count(peer.faults)),
    Column(
        "last seen",
        10,
        lambda peer, _: (UNKNOWN if peer.last_seen_s is None else peer.last_seen_s,),
        UP,
        lambda peer, _: show.age(peer.last_seen_s),
    ),
    Column(
        "invited by",
        11,
        lambda peer, _: (not peer.inviter, show.short(peer.inviter)),
        UP,
        lambda peer, view: view.label(peer.inviter) if peer.inviter else show.MISSING,
    ),
)
BY_NAME = {column.name: column for column in COLUMNS}


def ordered(known: Iterable[PeerStatus], view: View, name: str, *, reverse: bool) -> list[PeerStatus]:
    """Return the peers sorted by the column of that name, then by id."""
    rows = sorted(sorted(known, key=lambda peer: peer.peer), key=lambda peer: BY_NAME[name].order(peer, view))
    return rows[::-1] if reverse else rows


def row(peer: PeerStatus, view: View) -> tuple[Cell, ...]:
    """Return a cell for each column."""
    cells = (column.cell(peer, view) for column in COLUMNS)
    return tuple(Cell(cell) if isinstance(cell, str) else cell for cell in cells)


def lately(peer: PeerStatus, view: View) -> str:
    """Return the last exchanges with it, the newest last: a bar as high as it took long, × for one that was not committed; "" without any.

    The highest bar is the longest of those with any peer, so that bars of two peers can be compared.
    """
    known = view.snapshot.transactions if view.snapshot is not None else ()
    longest = max((each.seconds or 0.0 for each in known if each.outcome == "committed"), default=0.0)
    return "".join(_bar(each, longest) for each in [each for each in known if each.peer == peer.peer][-LATELY:])


def _bar(each: Transaction, longest: float) -> str:
    if each.outcome != "committed":
        return FAILED
    return show.BARS[min(7, int(8 * (each.seconds or 0.0) / longest))] if longest > 0 else show.BARS[0]


def details(peer: PeerStatus, view: View) -> list[tuple[str, str]]:
    """Return (name, text) for every known figure."""
    sign, _ = PEER_SIGNS[peer.state]
    bars = lately(peer, view)
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
        ("exchanges", f"{show.count(peer.committed)} committed{', lately ' + bars if bars else ''}"),
        ("bytes", f"{show.size(peer.bytes_sent)} sent, {show.size(peer.bytes_received)} received"),
        ("round trip", show.latency(peer.rtt_s)),
        ("last seen", f"{show.duration(peer.last_seen_s)} ago" if peer.last_seen_s is not None else show.MISSING),
        ("invited by", show.clean(peer.inviter)),
        ("addresses", "\n".join(show.clean(each) for each in peer.addresses) or show.MISSING),
    )
    return [(name, words) for name, words in rows if words]
