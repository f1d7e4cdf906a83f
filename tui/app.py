"""The terminal UI: asks its sources a few times a second and draws what they say. It holds nothing of a node and may be killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from tui.screens.help import HelpScreen
from tui.screens.node import NodeScreen
from tui.source import Reading, StatusSource

POLL_S = 0.25


class StarlingApp(App[None]):
    """Looks at one or several nodes.

    Args:
        sources: where snapshots come from, >= 1.
        clock: unix time in seconds, for the age of what is shown.
    """

    TITLE = "starling"
    CSS_PATH = "style.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide")]  # noqa: RUF012 - Textual declares it without ClassVar
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("n", "select(1)", "next node"),
        Binding("p", "select(-1)", "previous node"),
        Binding("question_mark", "help", "help", key_display="?"),
    ]

    def __init__(self, sources: Sequence[StatusSource], clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._sources = tuple(sources)
        self._clock = clock
        self._readings: tuple[Reading, ...] = ()
        self._selected = 0
        self._node_screen = NodeScreen()

    async def on_mount(self) -> None:
        """Show the first reading at once and then keep asking."""
        await self.push_screen(self._node_screen)
        self._poll()
        self.set_interval(POLL_S, self._poll)

    def on_unmount(self) -> None:
        """Detach from every node."""
        for source in self._sources:
            source.close()

    def action_select(self, step: int) -> None:
        """Show the next (1) or the previous (-1) node, around the end."""
        if self._readings:
            self._selected = (self._selected + step) % len(self._readings)
            self._draw()

    def action_help(self) -> None:
        """Open the help page."""
        self.push_screen(HelpScreen())

    def _poll(self) -> None:
        if not self.is_running:  # the timer may fire once more while the screen is taken down
            return
        self._readings = tuple(reading for source in self._sources for reading in source.poll())
        self._selected = min(self._selected, max(0, len(self._readings) - 1))
        self._draw()

    def _draw(self) -> None:
        waiting_for = ", ".join(source.name for source in self._sources)
        self._node_screen.show_node(self._readings, self._selected, waiting_for=waiting_for, now=self._clock())
