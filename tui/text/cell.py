"""One cell of a table."""

from typing import NamedTuple


class Cell(NamedTuple):
    """A figure or word, and the role of its color (`starling.tui.drawing.palette`)."""

    text: str
    role: str = "plain"
