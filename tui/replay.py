"""The time axis of a replay, from the first snapshot of any record to the last, and a position on it.

While playing, the position advances by clock time times speed, and stops at the end. The clock is an argument.
"""

from collections.abc import Callable
from dataclasses import dataclass

SPEEDS = (1, 4, 16)
STEPS = 40  # presses of an arrow key from one end to the other


@dataclass(frozen=True, slots=True)
class Position:
    """A position of a replay."""

    at_s: float  # seconds since the first snapshot
    length_s: float  # length of all records together, > 0
    playing: bool  # whether it advances
    speed: int  # a multiple of real time
    time_s: float  # unix time of the position

    @property
    def fraction(self) -> float:
        """Return the position: 0 at the beginning, 1 at the end."""
        return self.at_s / self.length_s


class Playback:
    """A time axis from `start` to `end` >= `start`, unix times in seconds, and a position on it; `clock` is monotonic, in seconds."""

    def __init__(self, start: float, end: float, clock: Callable[[], float]) -> None:
        self._start = start
        self._length_s = max(end - start, 1e-3)
        self._clock = clock
        self._at_s = 0.0
        self._ticked = clock()
        self._speed = 0
        self.playing = True

    def position(self) -> Position:
        """Return the current position."""
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
        """Move by this many fortieths of the record, back if negative."""
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
