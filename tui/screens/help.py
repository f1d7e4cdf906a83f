"""What the keys do and what the signs mean."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

HELP = """\
q        quit (the node goes on)
n  p     next and previous node, where there are several
↑  ↓     scroll the peers
?        this page; any of ? esc q closes it

–        not known (never 0)
!        a problem, a warning, or a peer in quarantine
● ○ …    training, waiting, starting or joining
✓ ← ✗    finished or done, leaving or left, failed or dead
?  ⊘     suspected, banned
ε        what our data have told so far (docs/privacy.md); – without noise
edge     we exchange models with this peer
done     exchanges both ends committed
seen     how long ago we last heard of the peer\
"""


class HelpScreen(ModalScreen[None]):
    """Over the node's screen; closed by the key that opened it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,escape,q", "dismiss", "close"),
    ]

    def compose(self) -> ComposeResult:
        """One text."""
        with VerticalScroll(id="help"):
            yield Static(HELP, markup=False)
