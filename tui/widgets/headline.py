"""The node in three lines: its state and figures, its health, what it trains and how."""

from rich.text import Text

from starling.node.status import format as show
from starling.node.status.snapshot import StatusSnapshot
from starling.tui.drawing.palette import NODE_SIGNS
from starling.tui.text.health import beside, health, members, value
from starling.tui.view import View
from starling.tui.widgets.lines import Panel


class Headline(Panel):
    """Draws the chosen node."""

    def update_from(self, view: View) -> None:
        """Draw this node; dashes where nothing is known."""
        self.show(_unknown(view) if view.snapshot is None else _lines(view.snapshot, view))


def _unknown(view: View) -> Text:
    name = show.clean(view.reading.name) if view.reading is not None else show.MISSING
    return Text(f"{name}  state {show.MISSING}  round {show.MISSING}  value {show.MISSING}  loss {show.MISSING}", no_wrap=True)


def _lines(snapshot: StatusSnapshot, view: View) -> Text:
    sign, role = NODE_SIGNS[snapshot.state]
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{sign} {snapshot.state}", style=f"bold {view.style(role)}")
    text.append(f"  round {show.rounds(snapshot.round, snapshot.rounds)}", style="bold")
    text.append(f"  {value(snapshot)}  loss {show.figure(snapshot.loss)}", style="bold")
    text.append(f"  {members(snapshot.members)}\n")
    sign, role, words = health(snapshot, view.label)
    text.append(f"{sign} {words}", style=view.style(role))
    text.append(beside(view.alone, snapshot) + "\n")
    how = () if snapshot.method else (("mix", snapshot.algorithm), ("overlay", snapshot.overlay))
    labelled = (("swarm", snapshot.name), ("task", snapshot.task), *how)
    for number, (name, words) in enumerate(labelled):
        text.append(f"{'  ' if number else ''}{name} ", style=view.style("dim"))
        text.append(show.clean(words) or show.MISSING)
    text.append(f"  {show.count(snapshot.parameters)}")
    text.append(" parameters", style=view.style("dim"))
    if snapshot.method:
        text.append(f"  {show.clean(snapshot.method)}")
    return text
