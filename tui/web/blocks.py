"""Blocks of the page as JSON: every text and figure is composed here, so that the browser only lays out. Pure."""

from collections.abc import Iterable, Sequence

import msgspec

from starling.node.status import format as show
from starling.node.status.snapshot import Point
from starling.tui.drawing.axes import axes, finite
from starling.tui.swarm import Pair, Swarm
from starling.tui.text.cell import Cell


class Block(msgspec.Struct, frozen=True, tag_field="kind"):
    """A box of a page."""

    title: str
    note: str = ""
    """At its lower edge."""


class Words(Block, frozen=True, tag="words"):
    """Rows of a name and a text; a role colors the name."""

    rows: Sequence[tuple[Cell, str]] = ()


class Text(Block, frozen=True, tag="text"):
    """Lines in a fixed-width font."""

    text: str = ""


class Row(msgspec.Struct, frozen=True):
    """A row of a table."""

    cells: Sequence[Cell]
    go: str = ""
    """Where a click leads, as NAME=VALUE of the page's address; "" for nowhere."""
    chosen: bool = False


class Table(Block, frozen=True, tag="table"):
    """`sortable`: a click on a column's name sorts by it; `sorted_by` and `sign` mark the one that is."""

    columns: Sequence[str] = ()
    rows: Sequence[Row] = ()
    sortable: bool = False
    sorted_by: str = ""
    sign: str = ""


class Tick(msgspec.Struct, frozen=True):
    """A place on an axis, 0 to 1 from its lower end, and what is written there."""

    at: float
    text: str


class Curve(Block, frozen=True, tag="curve"):
    """Points (x, y), both 0 to 1 from the lower left; none: not known yet."""

    points: Sequence[tuple[float, float]] = ()
    x_ticks: Sequence[Tick] = ()
    y_ticks: Sequence[Tick] = ()


class Graph(Block, frozen=True, tag="graph"):
    """Members on a circle; `links` are the pairs of this round and `edges` the other ones, by the places of the members."""

    members: Sequence[Cell] = ()
    own: int | None = None
    links: Sequence[tuple[int, int]] = ()
    edges: Sequence[tuple[int, int]] = ()


class Name(msgspec.Struct, frozen=True):
    """A node to choose."""

    name: str
    label: str
    troubled: bool
    chosen: bool


class Document(msgspec.Struct, frozen=True):
    """One page at one moment."""

    page: str
    title: str
    """Of the window."""
    nodes: Sequence[Name]
    problem: str | None
    blocks: Sequence[Block]


def words(title: str, rows: Iterable[tuple[str | Cell, str]]) -> Words:
    """Return a block of names and texts."""
    return Words(title, rows=[(Cell(name, "dim") if isinstance(name, str) else name, text) for name, text in rows])


def curve(title: str, points: Sequence[Point], *, bounded: bool = False) -> Curve:
    """Return a block with one curve; its title has the last value."""
    known = finite(points)
    title = f"{title} {show.small(known[-1].value if known else None)}"
    if not known:
        return Curve(title)
    of = axes(known, bounded=bounded)
    x_low, x_high = min(of.rounds), max(of.rounds)

    def across(at: float) -> float:
        return _part(at, x_low, x_high)

    def up(at: float) -> float:
        return _part(at, of.low, of.high)

    return Curve(
        title,
        points=[(across(x), up(y)) for x, y in zip(of.rounds, of.heights, strict=True)],
        x_ticks=[Tick(across(at), text) for at, text in zip(*of.x_ticks, strict=True)],
        y_ticks=[Tick(up(at), text) for at, text in zip(*of.y_ticks, strict=True)],
    )


def graph(title: str, note: str, swarm: Swarm) -> Graph:
    """Return the overlay without departed members."""
    members = [member for member in swarm.members if member.here]
    places = {member.peer: place for place, member in enumerate(members)}
    links = set(swarm.links or ())

    def placed(pairs: Iterable[Pair]) -> list[tuple[int, int]]:
        return [(places[one], places[other]) for one, other in sorted(pairs) if one in places and other in places]

    return Graph(
        title,
        note,
        members=[Cell(f"{each.sign} {each.label}", "own" if each.own else each.role) for each in members],
        own=next((place for place, each in enumerate(members) if each.own), None),
        links=placed(links),
        edges=placed(set(swarm.edges) - links),
    )


def _part(at: float, low: float, high: float) -> float:
    """Rounded to a ten-thousandth: no screen shows more, and every digit is sent every two seconds."""
    return round((at - low) / (high - low), 4) if high > low else 0.5
