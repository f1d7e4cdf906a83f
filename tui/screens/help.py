"""The help screen: keys, signs and words."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from starling.tui.text.help import KEYS, SIGNS, WORDS


class HelpScreen(ModalScreen[None]):
    """Covers any screen; closed by the key that opened it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,escape,q", "dismiss", "close"), Binding("enter", "tour", "tour")]

    def action_tour(self) -> None:
        """Close the help and start the tour."""
        self.dismiss()
        self.app.call_later(self.app.run_action, "app.tour")

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(f"KEYS\n{KEYS}\n\nSIGNS\n{SIGNS}\n\nWORDS\n{WORDS}", markup=False)
