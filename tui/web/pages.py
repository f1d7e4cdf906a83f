"""The pages of the web page, by the names of the terminal UI's screens: a request and a view in, blocks out. Pure."""

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final
from urllib.parse import urlencode

import msgspec

from starling.node.status import format as show
from starling.node.status.check import Check
from starling.node.status.snapshot import Event
from starling.tui.drawing.axes import is_bounded
from starling.tui.drawing.palette import LEVEL_SIGNS, NODE_SIGNS, PEER_SIGNS, VERDICT_SIGNS
from starling.tui.swarm import merge
from starling.tui.text import exchanges, nodes, peers, swarm
from starling.tui.text.agreed import said
from starling.tui.text.cell import MAX_ROWS, Cell, cut
from starling.tui.text.costs import costs
from starling.tui.text.events import LEVELS, events_of, passed
from starling.tui.text.events import words as line_of
from starling.tui.text.health import beside, health, members, problem, trains, troubled, value
from starling.tui.text.help import SIGNS, WORDS
from starling.tui.view import View
from starling.tui.web.blocks import Block, Document, Name, Row, Table, Text, curve, graph, words

LAST_EVENTS = 8  # below the curves
UNKNOWN = f"{show.MISSING}  nothing known yet"


class PageRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request in the page's address. Unknown values get the default."""

    page: str = "node"
    node: str = ""
    """Name of the chosen one; the first where it is none of them."""
    peer: str = ""
    """Peers: whose figures are shown; Edge: whose exchanges, "" for all."""
    sort: str = "edge"
    reverse: str = ""
    level: str = "all"
    words: str = ""
    every: str = ""
    """Events of all nodes."""


Verdicts = Sequence[Check] | str | None
"""Of the doctor: None while it examines, or a line why there are none."""


def document(asked: PageRequest, view: View, verdicts: Verdicts = None) -> Document:
    """Return what is shown; `view` has the requested node chosen."""
    page = asked.page if asked.page in PAGES else "node"
    labels = nodes.names(view)
    names = [Name(reading.name, labels[place], troubled(reading), place == view.selected) for place, reading in enumerate(view.readings)]
    wrong = problem(view)
    blocks = _doctor(view, verdicts) if page == "doctor" else PAGES[page](asked, view)
    return Document(page, _title(view), names, show.clean(wrong) if wrong is not None else None, blocks)


def place_of(name: str, names: Sequence[str]) -> int:
    """Return the index of the requested node."""
    return names.index(name) if name in names else 0


def _title(view: View) -> str:
    if view.snapshot is None or view.reading is None:
        return "starling"
    sign, _ = NODE_SIGNS[view.snapshot.state]
    return f"{sign} {show.clean(view.reading.name)}, round {show.count(view.snapshot.round)}, starling"


def _node(_asked: PageRequest, view: View) -> list[Block]:
    seen = view.snapshot
    if seen is None:
        return [Text("node", text=UNKNOWN)]
    sign, role = NODE_SIGNS[seen.state]
    well, well_role, well_words = health(seen, view.label)
    figures = f"round {show.rounds(seen.round, seen.rounds)}, {value(seen)}, loss {show.figure(seen.loss)}"
    metric = show.metric(seen.metric)
    return [
        words(
            "node",
            [
                (Cell(f"{sign} {seen.state}", role), f"{figures}, {members(seen.members)}"),
                (Cell(well, well_role), well_words + beside(view.alone, seen)),
                *((name or "method", text) for name, text in trains(seen)),
            ],
        ),
        curve("loss", seen.loss_curve),
        curve(metric or "value", seen.value_curve, bounded=is_bounded(metric)),
        curve("consensus distance", seen.distance_curve),
        words("speed and cost", costs(seen)),
        _event_table("last events", [(view.reading.name if view.reading else "", e) for e in seen.events[-LAST_EVENTS:]], view),
    ]


def _swarm(_asked: PageRequest, view: View) -> list[Block]:
    whole = merge(view.readings, view.selected)
    known = show.clean(view.snapshot.overlay) if view.snapshot is not None else ""
    return [
        graph(f"overlay {known}", swarm.legend(whole), whole),
        words("swarm", swarm.facts(whole, view)),
        Table(
            _counted("members", len(whole.members)),
            columns=swarm.COLUMNS,
            rows=[Row(swarm.row(member, whole), chosen=member.own) for member in whole.members[:MAX_ROWS]],
        ),
    ]


def _peers(asked: PageRequest, view: View) -> list[Block]:
    known = view.snapshot.peers if view.snapshot is not None else ()
    name = asked.sort if asked.sort in peers.BY_NAME else "edge"
    column, reverse = peers.BY_NAME[name], bool(asked.reverse)
    up = (column.sign == peers.UP) != reverse
    rows = [
        Row(peers.row(each, view), go=_go(peer=each.peer), chosen=each.peer == asked.peer)
        for each in peers.ordered(known, view, name, reverse=reverse)[:MAX_ROWS]
    ]
    ended = show.ended(view.snapshot.exchanges) if view.snapshot is not None else show.MISSING
    table = Table(
        f"{_counted('peers', len(known))}, by {name}{' reversed' if reverse else ''}",
        f"exchanges {ended}",
        columns=[each.name for each in peers.COLUMNS],
        rows=rows,
        sortable=True,
        sorted_by=name,
        sign=peers.UP if up else peers.DOWN,
    )
    chosen = [each for each in known if each.peer == asked.peer]
    return [table, *(words(f"peer {view.label(each.peer)}", peers.details(each, view)) for each in chosen)]


def _events(asked: PageRequest, view: View) -> list[Block]:
    every = bool(asked.every)
    events = events_of(view, all_nodes=every)
    level = asked.level if asked.level in LEVELS else "all"
    shown = passed(events, level, asked.words)
    title = f"events {len(shown)} of {len(events)}, {'all nodes' if every else 'this node'}, level {level}"
    return [_event_table(title, shown, view, named=every)]


def _event_table(title: str, events: Sequence[tuple[str, Event]], view: View, *, named: bool = False) -> Table:
    """Return the newest first, as a page grows downwards."""
    rows = []
    for node, event in reversed(events):
        sign, role = LEVEL_SIGNS[event.level]
        when = time.strftime("%H:%M:%S", time.localtime(event.time_s))
        name = [Cell(show.clean(node), "own")] if named else []
        rows.append(Row([Cell(when, "dim"), *name, Cell(f"{sign} {line_of(event, view)}", role)]))
    return Table(title, columns=["time", *(["node"] if named else []), "event"], rows=rows)


def _edge(asked: PageRequest, view: View) -> list[Block]:
    seen = view.snapshot
    if seen is None:
        return [Text("exchanges", text=UNKNOWN)]
    states = {each.peer: each.state for each in seen.peers}
    met = exchanges.met(seen)
    peer = asked.peer if asked.peer in met else exchanges.ALL
    choice = [Row([Cell("all peers"), Cell(exchanges.last(seen, exchanges.ALL))], go=_go(peer=""), chosen=peer == exchanges.ALL)]
    for each in met[:MAX_ROWS]:
        sign, role = PEER_SIGNS[states[each]] if each in states else (show.MISSING, "dim")
        cells = [Cell(f"{sign} {view.label(each)}", role), Cell(exchanges.last(seen, each))]
        choice.append(Row(cells, go=_go(peer=each), chosen=each == peer))
    ended = [each for each in seen.transactions if peer in (exchanges.ALL, each.peer)]
    transfers = [each for each in seen.transfers if peer in (exchanges.ALL, each.peer)]
    busy = [(Cell(each.kind, "warn"), exchanges.under_way(each, view)) for each in transfers]
    done = sum(each.outcome == "committed" for each in ended)
    of = view.label(peer) if peer else "all peers"
    return [
        Table(_counted("edge", len(met)), columns=["peer", "last"], rows=choice),
        words("under way", busy) if busy else Text("under way", text=f"{show.MISSING}  nothing"),
        Table(
            f"exchanges with {of}",
            f"last {len(ended)}: {done} committed",
            columns=exchanges.COLUMNS,
            rows=[Row(exchanges.row(each)) for each in reversed(ended)],
        ),
    ]


def _nodes(_asked: PageRequest, view: View) -> list[Block]:
    rows = [
        Row(row, go=_go(page="node", node=reading.name), chosen=place == view.selected)
        for place, (row, reading) in enumerate(zip(nodes.rows(view), view.readings, strict=True))
    ]
    return [Table(_counted("nodes", len(rows)), columns=nodes.COLUMNS, rows=rows[:MAX_ROWS])]


def _agreed(_asked: PageRequest, view: View) -> list[Block]:
    title = "what this swarm agreed on"
    return [words(title, said(view.snapshot)) if view.snapshot is not None else Text(title, text=UNKNOWN)]


def _doctor(view: View, verdicts: Verdicts) -> list[Block]:
    title = f"doctor {show.clean(view.reading.name) if view.reading is not None else ''}"
    if verdicts is None:
        return [Text(title, text="… checking this machine and its network")]
    if isinstance(verdicts, str):
        return [words(title, [(Cell("!", "bad"), show.clean(verdicts))])]
    rows = []
    for each in verdicts:
        sign, role = VERDICT_SIGNS[each.verdict]
        result = show.clean(each.found) + (f"\n→ {show.clean(each.todo)}" if each.todo else "")
        rows.append((Cell(f"{sign} {show.clean(each.check)}", role), result))
    return [words(title, rows)]


def _help(_asked: PageRequest, _view: View) -> list[Block]:
    return [Text("signs", text=SIGNS), Text("words", text=WORDS)]


def _go(**parameters: str) -> str:
    return urlencode(parameters)


def _counted(what: str, number: int) -> str:
    return f"{what} {number:,}{cut(number)}"


PAGES: Final[Mapping[str, Callable[[PageRequest, View], list[Block]]]] = MappingProxyType(
    {
        "node": _node,
        "swarm": _swarm,
        "peers": _peers,
        "events": _events,
        "edge": _edge,
        "nodes": _nodes,
        "agreed": _agreed,
        "doctor": lambda _, view: _doctor(view, None),
        "help": _help,
    }
)
