"""The swarm clock: seconds since the swarm began, as its members agree without a time server.

Theory of operation. A node holds one number, the offset from its own monotonic clock to swarm time. Each answered probe
gives a peer's offset within half the round trip; the last one of every peer is kept. The node's own offset votes with them:
  * Not synchronised yet: take the median of the peers.
  * The median is further than JUMP_S away (we restarted, or two swarms met): jump to it. On a tie the older clock wins,
    so that two nodes do not swap times.
  * Otherwise move a GAIN of the way to the median of the votes within JUMP_S. If honest clocks agree to that, a minority
    of Byzantine peers cannot move the clock beyond an honest one; this node counts as honest.

A node that is not synchronised sends UNKNOWN, which is ignored. Without a peer's time within `patience_s` it begins at 0:
a founder at once, and all nodes after a restart of the whole swarm.
"""

from dataclasses import dataclass, field
from statistics import median, median_high

UNKNOWN = -1.0  # sent by a node without swarm time; real times are >= 0
JUMP_S = 1.0  # errors beyond this are jumped, not slewed
LONGEST_S = 1e9  # thirty years; longer times are ignored, so that arithmetic keeps its microseconds
GAIN = 0.1  # share of the error corrected at one observation


@dataclass(slots=True)
class SwarmClock:
    """Median clock over peers. Without any for `patience_s` it begins at 0; 0 for a founder."""

    patience_s: float = 0.0
    _offset: float | None = None
    _offsets: dict[str, float] = field(default_factory=dict)
    _first: float | None = None

    def __post_init__(self) -> None:
        if self.patience_s < 0.0:
            raise ValueError(f"patience_s must be >= 0, got {self.patience_s}")

    def observe(self, peer: str, their_swarm_time: float, rtt_s: float, now: float) -> None:
        """A peer answered a probe with its swarm time, `rtt_s` >= 0 after it was sent; ignored outside [0, LONGEST_S], as UNKNOWN is."""
        if not 0.0 <= their_swarm_time <= LONGEST_S:
            return
        self._offsets[peer] = their_swarm_time + rtt_s / 2.0 - now
        self._offset = self._corrected()

    def forget(self, peer: str) -> None:
        """The peer left: its offset votes no more."""
        self._offsets.pop(peer, None)

    def time(self, now: float) -> float:
        """Swarm time in seconds, >= 0, or UNKNOWN.

        It may step back by at most GAIN · JUMP_S while slewing, and by any amount at a jump.
        """
        if self._first is None:
            self._first = now
        if self._offset is None and now >= self._first + self.patience_s:
            self._offset = -now
        return UNKNOWN if self._offset is None else max(0.0, now + self._offset)

    def slot(self, now: float, slot_s: float) -> int:
        """Number of the current slot of `slot_s` seconds, from 0; −1 while the time is UNKNOWN."""
        time = self.time(now)
        return -1 if time < 0.0 else int(time // slot_s)

    def next_slot_at(self, now: float, slot_s: float) -> float:
        """When the next slot has begun, on our monotonic clock; while the time is UNKNOWN, when `patience_s` ends.

        A microsecond late, so that rounding never wakes a sleeper in the slot it came from.
        """
        slot = self.slot(now, slot_s)
        if self._offset is None:
            assert self._first is not None
            return self._first + self.patience_s
        return (slot + 1) * slot_s - self._offset + 1e-6

    def _corrected(self) -> float:
        if self._offset is None:
            return median_high(self._offsets.values())
        own = self._offset
        votes = [own, *self._offsets.values()]
        middle = median_high(votes)
        if abs(middle - own) > JUMP_S:
            return middle
        return own + GAIN * (median(vote for vote in votes if abs(vote - own) <= JUMP_S) - own)
