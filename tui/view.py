"""The input of a screen: all readings of one moment, the chosen one, and how to label peers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from starling.node.status import format as show
from starling.node.status.snapshot import StatusSnapshot
from starling.tui.drawing.palette import style
from starling.tui.replay import Position
from starling.tui.source import Reading

REDRAW_S = 2.0


@dataclass(frozen=True, slots=True)
class View:
    """Everything that is drawn at one moment."""

    readings: tuple[Reading, ...] = ()  # all nodes in order; may be empty
    selected: int = 0  # index of the chosen one; ignored without readings
    waiting_for: str = ""  # names of the sources, shown without readings
    now: float = 0.0  # unix time, for the age of figures
    dark: bool = True  # whether the theme is dark
    position: Position | None = None  # position of a replay; None without one
    asked: bool = True  # after a user's action: expensive drawings are not delayed
    labels: Mapping[str, str] = field(default_factory=dict)  # of `labels_of`

    @property
    def reading(self) -> Reading | None:
        """Return the reading of the chosen node."""
        return self.readings[self.selected] if self.readings else None

    @property
    def snapshot(self) -> StatusSnapshot | None:
        """The last snapshot of the chosen one."""
        return self.reading.snapshot if self.reading is not None else None

    @property
    def alone(self) -> float | None:
        """Return, in a demo, the value of the node that trains alone."""
        return self.reading.alone if self.reading is not None else None

    def label(self, peer: str) -> str:
        """Label of a peer on the screen, distinct from that of every other known one."""
        return self.labels.get(peer) or show.short(peer)

    def style(self, role: str) -> str:
        """Return a Rich style for a role of `starling.tui.drawing.palette`."""
        return style(role, dark=self.dark)


def labels_of(readings: Sequence[Reading]) -> Mapping[str, str]:
    """Return peer id -> unique label: the name of its node if that is attached, otherwise the end of its id."""
    texts: dict[str, str] = {}
    snapshots = [(reading.name, reading.snapshot) for reading in readings if reading.snapshot is not None]
    for name, snapshot in snapshots:
        texts.setdefault(snapshot.peer, name or snapshot.peer)
    for _, snapshot in snapshots:
        mentioned = (
            *(peer.peer for peer in snapshot.peers),
            *(peer.inviter for peer in snapshot.peers),
            *snapshot.ranks,
            *(each.peer for each in snapshot.transactions),
            *(each.peer for each in snapshot.transfers),
        )
        texts.update({peer: peer for peer in mentioned if peer and peer not in texts})
    return _labels(tuple(texts.items()))


@lru_cache(maxsize=4)
def _labels(texts: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """Return unique labels, cached for all polls with the same peers."""
    return show.labels(dict(texts))


class Throttle:
    """Limits costly drawings: only when their input has changed, and at most once every REDRAW_S."""

    def __init__(self) -> None:
        self._drawn: object = None
        self._drawn_at = -math.inf

    def due(self, wanted: object, view: View) -> bool:
        """Return whether it is time to draw, and record it; `wanted`: all that the drawing depends on. Users' actions are never delayed."""
        if wanted == self._drawn or (0 <= view.now - self._drawn_at < REDRAW_S and not view.asked):
            return False
        self._drawn, self._drawn_at = wanted, view.now
        return True
