"""Recorded runs as sources: several files on one time axis that can be played, paused and moved along.

Theory of operation: a `Playback` is the axis, from the first snapshot of any file to the last, and a position on it. Every `RecordSource`
reads the newest snapshot that is not later than that position. While playing, the position advances by clock time times speed, and stops
at the end. The clock is given.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from starling.node.status import format as show
from starling.node.status.record import load
from starling.node.status.snapshot import StatusSnapshot
from starling.tui.source import Reading

SPEEDS = (1, 4, 16)
STEPS = 40  # presses of an arrow key from one end to the other
SILENT_S = 5.0  # a record has a line a second


@dataclass(frozen=True, slots=True)
class Position:
    """A position of a replay.

    Args:
        at_s: seconds since the first snapshot.
        length_s: of all records together, > 0.
        playing: whether it advances.
        speed: a multiple of real time.
        time_s: unix time of the position.
    """

    at_s: float
    length_s: float
    playing: bool
    speed: int
    time_s: float

    @property
    def fraction(self) -> float:
        """0 at the beginning, 1 at the end."""
        return self.at_s / self.length_s


class Playback:
    """A time axis and a position on it.

    Args:
        start: unix time of its beginning, seconds.
        end: of its end, >= start.
        clock: seconds, monotonic.
    """

    def __init__(self, start: float, end: float, clock: Callable[[], float]) -> None:
        self._start = start
        self._length_s = max(end - start, 1e-3)
        self._clock = clock
        self._at_s = 0.0
        self._ticked = clock()
        self._speed = 0
        self.playing = True

    def position(self) -> Position:
        """The position now."""
        self._tick()
        return Position(self._at_s, self._length_s, self.playing, SPEEDS[self._speed], self._start + self._at_s)

    def toggle(self) -> None:
        """Play or pause; at the end, from the beginning again."""
        self._tick()
        if not self.playing and self._at_s >= self._length_s:
            self._at_s = 0.0
        self.playing = not self.playing

    def seek(self, fraction: float) -> None:
        """Go to this fraction of the whole, clamped to [0, 1]."""
        self._tick()
        self._at_s = self._length_s * min(1.0, max(0.0, fraction))

    def step(self, steps: int) -> None:
        """Go so many fortieths forward, or back if negative."""
        self.seek(self.position().fraction + steps / STEPS)

    def faster(self) -> None:
        """The next speed; after the last the first."""
        self._tick()
        self._speed = (self._speed + 1) % len(SPEEDS)

    def _tick(self) -> None:
        now = self._clock()
        if self.playing:
            self._at_s = min(self._length_s, self._at_s + (now - self._ticked) * SPEEDS[self._speed])
            self.playing = self._at_s < self._length_s
        self._ticked = now


class RecordSource:
    """One node's record on a common axis.

    Args:
        name: what the node is called here.
        snapshots: in the order of time, >= 1.
        playback: the axis.
    """

    def __init__(self, name: str, snapshots: Sequence[StatusSnapshot], playback: Playback) -> None:
        self.name = name
        self._snapshots = sorted(snapshots, key=lambda snapshot: snapshot.time_s)
        self._times = [snapshot.time_s for snapshot in self._snapshots]
        self._playback = playback

    def poll(self) -> tuple[Reading, ...]:
        """The node as it was at the position."""
        now = self._playback.position().time_s
        after = bisect_right(self._times, now)
        if after == 0:
            return (Reading(self.name, None, f"the record of {self.name} begins later", as_of=now),)
        snapshot = self._snapshots[after - 1]
        silent_s = now - snapshot.time_s
        trouble = f"nothing was recorded for {show.duration(silent_s)}" if silent_s > SILENT_S else None
        return (Reading(self.name, snapshot, trouble, as_of=now),)

    def close(self) -> None:
        """Nothing to close."""


def replay(files: Mapping[str, Path], clock: Callable[[], float]) -> tuple[list[RecordSource], Playback]:
    """Records as sources on one axis.

    Args:
        files: name -> file written by a node, >= 1.
        clock: seconds, monotonic.

    Raises:
        ValueError: one of them is no record; one line that names it.
    """
    records = {name: load(path) for name, path in files.items()}
    times = [snapshot.time_s for record in records.values() for snapshot in record]
    playback = Playback(min(times), max(times), clock)
    return [RecordSource(name, record, playback) for name, record in records.items()], playback
