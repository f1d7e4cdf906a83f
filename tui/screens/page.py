"""The frame of every page."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Static

from starling.node.status import format as show
from starling.tui.drawing.palette import NODE_SIGNS
from starling.tui.text.health import value
from starling.tui.view import View
from starling.tui.widgets.frame import NodeSelector, Problem, TabBar, Timeline


class Page(Screen[None]):
    """A screen that draws a view. It stores a user's choices, but no state of a node."""

    NAME: ClassVar[str]

    class Shown(Message):
        """The page was opened or resized: draw it."""

    def __init__(self) -> None:
        super().__init__()
        self._drawn_tiny_text = Text()

    def compose(self) -> ComposeResult:
        """Yield every widget once; the style sheet places them for the terminal's size."""
        yield Problem()
        yield TabBar(self.NAME)
        yield NodeSelector()
        with Container(id="body"):
            yield from self.compose_body()
        yield Static(id="tiny", markup=False)
        yield Timeline()
        yield Footer()

    def on_screen_resume(self) -> None:
        self.call_after_refresh(self.post_message, self.Shown())

    def on_resize(self) -> None:
        self.call_after_refresh(self.post_message, self.Shown())

    def compose_body(self) -> ComposeResult:
        """Return the page's own widgets."""
        raise NotImplementedError

    def draw_body(self, view: View) -> None:
        """Draw the page's own widgets."""
        raise NotImplementedError

    def draw(self, view: View) -> None:
        """Draw the page for this moment."""
        self.query_one(Problem).update_from(view)
        self.query_one(NodeSelector).update_from(view.readings, view.selected)
        self.query_one(Timeline).update_from(view)
        if self.has_class("-tiny") or self.has_class("-low"):
            self._draw_tiny(_tiny(view))
        else:
            self.draw_body(view)

    def _draw_tiny(self, text: Text) -> None:
        if text != self._drawn_tiny_text:
            self._drawn_tiny_text = text
            self.query_one("#tiny", Static).update(text)

    def peer_to_copy(self, view: View) -> str | None:
        """Return the peer id that "copy" refers to: here the chosen node's own."""
        return view.snapshot.peer if view.snapshot is not None else None


def _tiny(view: View) -> Text:
    """Return the most important figures in twenty columns."""
    snapshot = view.snapshot
    text = Text()
    if snapshot is not None:
        sign, role = NODE_SIGNS[snapshot.state]
        text.append(f"{sign} {snapshot.state}\n", style=view.style(role))
        text.append(f"round {show.rounds(snapshot.round, snapshot.rounds)}\n{value(snapshot)}\n")
    text.append("terminal too small: starling needs 60 x 16", style=view.style("dim"))
    return text
