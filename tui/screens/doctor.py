"""The verdicts of `starling doctor` on the chosen node, its machine and its network."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from rich.text import Text

from starling.node.status import format as show
from starling.node.status.check import Check
from starling.tui.drawing.palette import VERDICT_SIGNS
from starling.tui.screens.over import Over, rows
from starling.tui.view import View

Examine = Callable[[Path], Awaitable[Sequence[Check]]]
"""Of `starling.tui.doctor`: its checks of a run directory; raises ValueError with why there are none."""


class DoctorScreen(Over):
    """Runs the doctor when opened, which takes some seconds, and shows its verdicts."""

    def __init__(self, run_dir: Path, view: View, examine: Examine) -> None:
        wait = Text("… checking this machine and its network", style=view.style("dim"))
        super().__init__(f"doctor {show.clean(view.reading.name) if view.reading is not None else ''}", wait)
        self._run_dir, self._view, self._examine = run_dir, view, examine

    def on_mount(self) -> None:
        self.run_worker(self._ask(), exclusive=True)

    async def _ask(self) -> None:
        try:
            checks = await self._examine(self._run_dir)
        except ValueError as error:
            self.replace(Text(f"! {show.clean(str(error))}", style=self._view.style("bad")))
        else:
            self.replace(rows(_row(each, self._view) for each in checks))


def _row(each: Check, view: View) -> tuple[Text, Text]:
    sign, role = VERDICT_SIGNS[each.verdict]
    text = show.clean(each.found) + (f"\n→ {show.clean(each.todo)}" if each.todo else "")
    return Text(f"{sign} {show.clean(each.check)}", style=view.style(role)), Text(text)
