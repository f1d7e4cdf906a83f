"""The panel of what taking part costs."""

from rich.text import Text

from starling.node.status import format as show
from starling.tui.text.costs import costs
from starling.tui.view import View
from starling.tui.widgets.lines import Panel, labelled


class Costs(Panel):
    """Draws the chosen node, a row for each figure that is set."""

    def update_from(self, view: View) -> None:
        """Draw this node; dashes where nothing is known."""
        if view.snapshot is None:
            self.show(Text(f"{show.MISSING}  nothing known yet", style=view.style("dim")))
        else:
            self.show(labelled(costs(view.snapshot), view))
