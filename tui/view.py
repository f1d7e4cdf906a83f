"""What a screen draws: all readings of this moment, and which of them is chosen."""

from __future__ import annotations

from dataclasses import dataclass

from starling.node.status import format as show
from starling.node.status.snapshot import StatusSnapshot
from starling.tui.drawing.palette import style
from starling.tui.replay import Position
from starling.tui.source import Reading


@dataclass(frozen=True, slots=True)
class View:
    """One moment.

    Args:
        readings: all nodes, in their order; empty while there are none.
        selected: index into them; ignored when there are none.
        waiting_for: what to say while there are none.
        now: unix time, for the age of what is shown.
        dark: the theme is.
        position: of a replay; None where nothing is replayed.
        asked: a person did something, so what is costly is drawn at once too.
    """

    readings: tuple[Reading, ...] = ()
    selected: int = 0
    waiting_for: str = ""
    now: float = 0.0
    dark: bool = True
    position: Position | None = None
    asked: bool = True

    @property
    def reading(self) -> Reading | None:
        """The chosen one."""
        return self.readings[self.selected] if self.readings else None

    @property
    def snapshot(self) -> StatusSnapshot | None:
        """What the chosen one last said."""
        return self.reading.snapshot if self.reading is not None else None

    def label(self, peer: str) -> str:
        """What a peer is called here: its node's name where we look at it too, else the end of its id."""
        names = (r.name for r in self.readings if r.snapshot is not None and r.snapshot.peer == peer)
        return show.clean(next(names, "")) or show.short(peer)

    def style(self, role: str) -> str:
        """A Rich style for a role of `starling.tui.drawing.palette`."""
        return style(role, dark=self.dark)

    def now_for(self, reading: Reading) -> float:
        """Unix time to measure this reading's age from."""
        return self.now if reading.as_of is None else reading.as_of
