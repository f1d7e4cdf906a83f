"""A box over a page that any of three keys closes."""

from collections.abc import Iterable
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from starling.node.status import format as show
from starling.tui.text.agreed import said
from starling.tui.view import View
from starling.tui.widgets.lines import entitle

NAME = 13  # cells of a row's name


class Over(ModalScreen[None]):
    """A title and rows of names and texts; longer content scrolls."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "dismiss", "close", key_display="esc")]

    def __init__(self, title: str, shown: Table | Text) -> None:
        super().__init__()
        self._heading, self._shown = title, shown

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="details") as box:
            entitle(box, self._heading)
            yield Static(self._shown, markup=False)
        yield Footer(show_command_palette=False)

    def replace(self, shown: Table | Text) -> None:
        """Replace the content."""
        self._shown = shown
        self.query_one("#details Static", Static).update(shown)


def rows(pairs: Iterable[tuple[Text | str, Text | str]]) -> Table:
    """Return a table of names and texts, with the texts wrapped in their own column."""
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(width=NAME - 1, no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for name, words in pairs:
        table.add_row(*(Text(each) if isinstance(each, str) else each for each in (name, words)))
    return table


def agreed(view: View) -> Table | Text:
    """Return what the members of the chosen node's swarm agreed on, as text."""
    return rows(said(view.snapshot)) if view.snapshot is not None else Text(f"{show.MISSING}  nothing known yet", style=view.style("dim"))
