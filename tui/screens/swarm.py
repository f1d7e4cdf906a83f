"""The swarm, merged from all attached nodes."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container

from starling.node.status import format as show
from starling.tui.drawing.circle_plot import draw
from starling.tui.screens.page import Page
from starling.tui.swarm import Member, Swarm, merge
from starling.tui.view import Throttle, View
from starling.tui.widgets.lines import Panel, entitle, labelled
from starling.tui.widgets.rows import MAX_ROWS, Row, Rows, cut

COLUMNS = (("member", 9), ("state", 14), ("round", 7), ("edges", 6), ("known by", 9))


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
            yield Rows(id="members", title="members", columns=COLUMNS)

    def draw_body(self, view: View) -> None:
        swarm = merge(view.readings, view.selected)
        overlay, members = self.query_one("#overlay", Panel), self.query_one(Rows)
        known = view.snapshot.overlay if view.snapshot is not None else ""
        size = overlay.content_size
        here = [(member.peer, member.label, member.state) for member in swarm.members]
        if self._throttle.due((here, swarm.edges, swarm.links, known, size, view.selected, view.dark), view):
            entitle(overlay, f"overlay {show.clean(known)}", _legend(swarm))
            overlay.show(draw(swarm, size.width, size.height, view.style))
        self.query_one("#facts", Panel).show(_facts(swarm, view))
        shown = swarm.members[:MAX_ROWS]
        entitle(members, f"members {len(swarm.members):,}{cut(len(swarm.members))}")
        members.show_rows([_row(member, swarm, view) for member in shown])

    def peer_to_copy(self, view: View) -> str | None:
        """The member under the cursor."""
        return self.query_one(Rows).chosen


def _legend(swarm: Swarm) -> str:
    pairs = show.MISSING if swarm.links is None else len(swarm.links)
    return f"━ pairs of this round {pairs}  ┄ edges {len(swarm.edges)}"


def _facts(swarm: Swarm, view: View) -> Text:
    metric = show.metric(view.snapshot.metric) if view.snapshot is not None else ""
    here = sum(member.here for member in swarm.members)
    lines = [
        ("members", f"{show.count(here or None)} ({len(swarm.members) - here:,} gone), {swarm.attached} attached"),
        (metric or "value", _spread(swarm.values)),
        ("round", show.count(swarm.round)),
        ("steps", f"{show.speed(swarm.steps_per_s)} of {swarm.attached} attached"),
        ("sent", f"{show.rate(swarm.sent_per_s)} of {swarm.attached} attached"),
    ]
    if swarm.distances:
        lines.append(("distance", _spread(swarm.distances)))
    if swarm.share is not None:
        lines.append(("its share", f"{show.share(swarm.share)} of their steps"))
    return labelled(lines, view)


def _spread(figures: tuple[float, ...]) -> str:
    """Mean, least and greatest."""
    if not figures:
        return show.MISSING
    if len(figures) == 1:
        return show.small(figures[0])
    return f"{show.small(sum(figures) / len(figures))} ({show.small(min(figures))}–{show.small(max(figures))})"


def _row(member: Member, swarm: Swarm, view: View) -> Row:
    return member.peer, (
        Text(f"[{member.label}]" if member.own else member.label, style=view.style("own") if member.own else ""),
        Text(f"{member.sign} {member.state}", style=view.style(member.role)),
        Text(show.count(member.round)),
        Text(show.count(member.edges)),
        Text(f"{member.known_by} of {swarm.attached}"),
    )
