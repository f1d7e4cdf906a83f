"""The swarm clock: seconds since the swarm began, as its members agree without a time server.

Theory of operation. A node holds one number, the offset from its own monotonic clock to swarm time. Each answered probe gives a peer's
offset within half the round trip; the last one of every peer is kept. Votes are those of electors (`starling.gossip.quorum`).
  * The node begins at its own value: 0 in a swarm that begins now, the time of its model's round in one that goes on. It takes the lower
    median of the times that it has heard, of those no further ahead than members can be: FRESH_S in the former, in the latter also as
    long as the model may be old. Else eight identities of a stranger say that the run is over, and a newcomer, who has no electors yet,
    believes it.
  * The median of its offset and the electors' is further than JUMP_S away (we were left behind, or two swarms met): jump to it.
  * Otherwise move a GAIN of the way to the median of the votes within JUMP_S, and never further from where the clock began or jumped to
    than JUMP_S and DRIFT of the time since, which is more than clocks drift.
So strangers do not move the clock, fewer than a third of liars keep it within the span of the honest ones, and where there are too few
members for a majority a liar moves it by no more than JUMP_S and DRIFT.

A node that has not begun sends UNKNOWN, which is ignored.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median, median_low

from starling.gossip.limits import keep
from starling.gossip.quorum import LEAST, middle

UNKNOWN = -1.0  # sent by a node without swarm time; real times are >= 0
JUMP_S = 1.0  # larger errors are corrected at once, not gradually
FRESH_S = 10.0  # seconds by which members of a starting swarm may see its quorum at different times, or a snapshot be old
LONGEST_S = 1e9  # thirty years; longer times are ignored, so that arithmetic keeps microseconds
GAIN = 0.1  # share of the error corrected at one observation
DRIFT = 5e-4  # drift of clocks that NTP assumes
MAX_PEERS = 4096


@dataclass(slots=True)
class SwarmClock:
    """Swarm time as the median of the clocks of peers that have a vote."""

    has_vote: Callable[[str], bool] = lambda _peer: True
    _offset: float | None = None
    _offsets: dict[str, float] = field(default_factory=dict)
    _anchor: tuple[float, float] = (0.0, 0.0)  # (offset after the last jump or the start, time of that)

    def observe(self, peer: str, their_swarm_time: float, rtt_s: float, now: float) -> None:
        """Take a peer's swarm time, received `rtt_s` >= 0 after the probe was sent; ignored outside [0, LONGEST_S], as UNKNOWN is."""
        if not 0.0 <= their_swarm_time <= LONGEST_S:
            return
        keep(self._offsets, peer, their_swarm_time + rtt_s / 2.0 - now, MAX_PEERS)
        if self._offset is not None:
            self._correct(self._offset, now)

    def forget(self, peer: str) -> None:
        """Delete the vote of a peer that left."""
        self._offsets.pop(peer, None)

    def is_informed(self, others: int) -> bool:
        """Return whether at least LEAST other members have reported the time, so that one liar is no half, or all have."""
        return len(self._offsets) >= min(LEAST, others)

    def begin(self, own_s: float, now: float, old_s: float = 0.0) -> None:
        """Begin at the time that peers reported, or at a value in seconds, 0 in a swarm that begins now.

        `old_s` is how long ago the value may have been true.
        """
        heard = [offset + now for offset in self._offsets.values()]
        believed = [time for time in heard if own_s - JUMP_S <= time <= own_s + old_s + FRESH_S]
        self._place(median_low(believed) - now if believed else own_s - now, now)

    def suspended(self, for_s: float, now: float) -> None:
        """Add the time for which the machine slept, which its monotonic clock did not count; earlier reports are stale."""
        self._offsets.clear()
        if self._offset is not None:
            self._place(self._offset + for_s, now)

    def time(self, now: float) -> float:
        """Return the swarm time in seconds, >= 0, or UNKNOWN.

        It may step back by at most GAIN · JUMP_S while slewing, and by any amount at a jump.
        """
        return UNKNOWN if self._offset is None else max(0.0, now + self._offset)

    def slot(self, now: float, slot_s: float) -> int:
        """Return the number of the current slot of `slot_s` seconds, from 0; −1 while the time is UNKNOWN."""
        time = self.time(now)
        return -1 if time < 0.0 else int(time // slot_s)

    def next_slot_at(self, now: float, slot_s: float) -> float:
        """Return when the next slot has begun, on our monotonic clock; the clock has begun.

        A microsecond late, so that rounding never wakes a sleeper in the slot it came from.
        """
        assert self._offset is not None
        return (self.slot(now, slot_s) + 1) * slot_s - self._offset + 1e-6

    def _place(self, offset: float, now: float) -> None:
        self._offset, self._anchor = offset, (offset, now)

    def _correct(self, own: float, now: float) -> None:
        votes = [offset for peer, offset in self._offsets.items() if self.has_vote(peer)]
        agreed = middle(own, votes)
        if agreed is not None and abs(agreed - own) > JUMP_S:
            self._place(agreed, now)
            return
        target = own + GAIN * (median([own, *(vote for vote in votes if abs(vote - own) <= JUMP_S)]) - own)
        anchor, since = self._anchor
        reach = JUMP_S + DRIFT * max(0.0, now - since)
        self._offset = min(max(target, anchor - reach), anchor + reach)
