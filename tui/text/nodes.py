"""The attached nodes, a row each."""

from starling.node.status import format as show
from starling.tui.drawing.palette import NODE_SIGNS
from starling.tui.source import Reading
from starling.tui.text.cell import Cell
from starling.tui.text.health import troubled
from starling.tui.view import View

COLUMNS = ("node", "state", "round", "value", "loss", "members")


def names(view: View) -> list[str]:
    """Return a unique name for each."""
    names = show.labels({str(place): reading.name for place, reading in enumerate(view.readings)})
    return [names[str(place)] for place in range(len(view.readings))]


def rows(view: View) -> list[tuple[Cell, ...]]:
    """Return a cell for each column; a `!` follows the name of a node with a problem."""
    return [_row(name, reading) for name, reading in zip(names(view), view.readings, strict=True)]


def _row(name: str, reading: Reading) -> tuple[Cell, ...]:
    mark = "!" if troubled(reading) else ""
    snapshot = reading.snapshot
    if snapshot is None:
        return Cell(f"{name}{mark}"), *(Cell(show.MISSING, "dim") for _ in COLUMNS[1:])
    sign, role = NODE_SIGNS[snapshot.state]
    state = Cell(f"{sign} {snapshot.state}", role) if reading.live or reading.ended else Cell("? unreached", "warn")
    return (
        Cell(f"{name}{mark}"),
        state,
        Cell(show.rounds(snapshot.round, snapshot.rounds)),
        Cell(show.figure(snapshot.value)),
        Cell(show.figure(snapshot.loss)),
        Cell(show.count(snapshot.members)),
    )
