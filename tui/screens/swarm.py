"""The swarm, merged from all attached nodes."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container

from starling.node.status import format as show
from starling.tui.drawing.circle_plot import draw
from starling.tui.screens.page import Page
from starling.tui.swarm import Member, Swarm, merge
from starling.tui.text.cell import MAX_ROWS, cut
from starling.tui.text.swarm import COLUMNS, facts, legend, row
from starling.tui.view import Throttle, View
from starling.tui.widgets.lines import Panel, entitle, labelled
from starling.tui.widgets.rows import Row, Rows

WIDTHS = (9, 14, 7, 6, 9)


class SwarmScreen(Page):
    """A drawing of the overlay, figures of the swarm, and every member."""

    NAME = "swarm"

    def __init__(self) -> None:
        super().__init__()
        self._throttle = Throttle()

    def compose_body(self) -> ComposeResult:
        yield Panel(id="overlay", title="overlay")
        with Container(id="whole"):
            yield Panel(id="facts", title="swarm")
            yield Rows(id="members", title="members", columns=tuple(zip(COLUMNS, WIDTHS, strict=True)))

    def draw_body(self, view: View) -> None:
        swarm = merge(view.readings, view.selected)
        overlay, members = self.query_one("#overlay", Panel), self.query_one(Rows)
        known = view.snapshot.overlay if view.snapshot is not None else ""
        size = overlay.content_size
        here = [(member.peer, member.label, member.state) for member in swarm.members]
        if self._throttle.due((here, swarm.edges, swarm.links, known, size, view.selected, view.dark), view):
            entitle(overlay, f"overlay {show.clean(known)}", legend(swarm))
            overlay.show(draw(swarm, size.width, size.height, view.style))
        self.query_one("#facts", Panel).show(labelled(facts(swarm, view), view))
        shown = swarm.members[:MAX_ROWS]
        entitle(members, f"members {len(swarm.members):,}{cut(len(swarm.members))}")
        members.show_rows([_row(member, swarm, view) for member in shown])

    def peer_to_copy(self, view: View) -> str | None:
        """Return the member under the cursor."""
        return self.query_one(Rows).chosen


def _row(member: Member, swarm: Swarm, view: View) -> Row:
    return member.peer, tuple(Text(cell.text, style=view.style(cell.role)) for cell in row(member, swarm))
