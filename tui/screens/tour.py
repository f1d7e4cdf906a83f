"""A tour in a box at the bottom of the page that it is about."""

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from starling.tui.text.tour import STOPS
from starling.tui.widgets.lines import entitle


class TourScreen(ModalScreen[None]):
    """One step of the tour; `go` closes it and opens that of another number, on its page."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space,right", "go(1)", "next", key_display="enter"),
        Binding("left,backspace", "go(-1)", "back", key_display="←"),
        Binding("escape", "dismiss", "end the tour", key_display="esc"),
        Binding("q", "app.quit", show=False),  # nobody asked for the first tour, and its last step says that q leaves
    ]

    def __init__(self, number: int, go: Callable[[int], None]) -> None:
        super().__init__()
        self._number, self._go = number, go

    def compose(self) -> ComposeResult:
        stop = STOPS[self._number]
        with Container(id="tour") as box:
            entitle(box, f"{self._number + 1} of {len(STOPS)}: {stop.title}")
            yield Static(stop.text, markup=False)
        yield Footer(show_command_palette=False)

    def action_go(self, step: int) -> None:
        """Go to the next (1) or the previous (-1) stop; after the last one the tour ends."""
        number = self._number + step
        if number < 0:
            return
        self.dismiss()
        if number < len(STOPS):
            self._go(number)
