"""The node in three lines: what it does, how far it got and how well it learns; whether it helps; what it is."""

from __future__ import annotations

from rich.text import Text

from starling.node.status import format as show
from starling.node.status.snapshot import StatusSnapshot
from starling.tui.drawing.palette import NODE_SIGNS
from starling.tui.health import verdict
from starling.tui.view import View
from starling.tui.widgets.panel import Panel


class Headline(Panel):
    """Draws the chosen node."""

    def update_from(self, view: View) -> None:
        """Draw this node; dashes where nothing is known."""
        self.show(_unknown(view) if view.snapshot is None else _lines(view.snapshot, view))


def _unknown(view: View) -> Text:
    name = show.clean(view.reading.name) if view.reading is not None else show.MISSING
    return Text(
        f"{name}  state {show.MISSING}  round {show.MISSING}  value {show.MISSING}  loss {show.MISSING}", no_wrap=True
    )


def _lines(snapshot: StatusSnapshot, view: View) -> Text:
    sign, role = NODE_SIGNS[snapshot.state]
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{sign} {snapshot.state}", style=f"bold {view.style(role)}")
    text.append(f"  round {show.rounds(snapshot.round, snapshot.rounds)}", style="bold")
    text.append(f"  {value(snapshot)}  loss {show.figure(snapshot.loss)}", style="bold")
    text.append(f"  {_members(snapshot.members)}\n")
    sign, role, words = verdict(snapshot)
    text.append(f"{sign} {words}\n", style=view.style(role))
    traits = [show.clean(snapshot.name), f"peer {show.short(snapshot.peer)}", show.clean(snapshot.task)]
    traits += [show.clean(snapshot.algorithm), show.clean(snapshot.overlay)]
    traits += [f"{show.count(snapshot.parameters)} parameters", show.clean(snapshot.device or show.MISSING)]
    traits += [f"up {show.duration(snapshot.uptime_s)}"]
    traits += ["rejoined"] if snapshot.rejoined else ["joined late"] if snapshot.joined_late else []
    text.append(" · ".join(trait or show.MISSING for trait in traits), style=view.style("dim"))
    return text


def value(snapshot: StatusSnapshot) -> str:
    """The last evaluation, with its name and round."""
    name = show.metric(snapshot.metric) or "value"
    at = f" (round {show.count(snapshot.value_round)})" if snapshot.value_round is not None else ""
    return f"{name} {show.figure(snapshot.value)}{at}"


def _members(members: int) -> str:
    return "1 member" if members == 1 else f"{members:,} members"
