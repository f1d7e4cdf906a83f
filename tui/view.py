"""What a screen draws: all readings of this moment and which of them is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
        waiting_for: names of the sources, shown while there are none.
        now: unix time, for the age of what is shown.
        dark: whether the theme is dark.
        position: of a replay; None where nothing is replayed.
        asked: after an action of a person: costly drawings are not delayed.
        labels: of `starling.tui.labels`.
    """

    readings: tuple[Reading, ...] = ()
    selected: int = 0
    waiting_for: str = ""
    now: float = 0.0
    dark: bool = True
    position: Position | None = None
    asked: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def reading(self) -> Reading | None:
        """The chosen one."""
        return self.readings[self.selected] if self.readings else None

    @property
    def snapshot(self) -> StatusSnapshot | None:
        """The last snapshot of the chosen one."""
        return self.reading.snapshot if self.reading is not None else None

    def label(self, peer: str) -> str:
        """What a peer is called on the screen; no two of those known have the same label."""
        return self.labels.get(peer) or show.short(peer)

    def style(self, role: str) -> str:
        """A Rich style for a role of `starling.tui.drawing.palette`."""
        return style(role, dark=self.dark)

    def now_for(self, reading: Reading) -> float:
        """Unix time to measure this reading's age from."""
        return self.now if reading.as_of is None else reading.as_of
