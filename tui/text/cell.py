"""Tables: a cell, and how many rows are drawn."""

from typing import Final, NamedTuple

MAX_ROWS: Final = 200  # rows drawn at most; the title says how many there are


def cut(count: int) -> str:
    """Return the addition to a title if not all rows are shown."""
    return f", {MAX_ROWS} shown" if count > MAX_ROWS else ""


class Cell(NamedTuple):
    """A figure or word, and the role of its color (`starling.tui.drawing.palette`)."""

    text: str
    role: str = "plain"
