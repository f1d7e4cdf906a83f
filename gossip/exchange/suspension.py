"""Estimate how far the swarm may be ahead after this node was suspended, stopped, or without a processor. Seconds are arguments.

Of most nodes that slept at once none is believed when two that were awake say how far they are: there could be two liars. But a node knows
of itself that it was away, and for how long. It is its own witness that it may be behind by the rounds that fit into that time, and no
more; so for a while it believes two peers about that much (`starling.gossip.exchange.progress`).
"""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

WINDOW = 8  # recent rounds that give the usual duration
LEAST = 3  # fewest rounds for a usual duration
TIMES = 8.0  # a round that takes so many times the usual, waiting for peers excluded, was interrupted by a suspension
ROUNDS = 16  # rounds of ours in which enough peers are met after a suspension


@dataclass(slots=True)
class Suspension:
    """Estimates the rounds that this node may have missed while it was suspended."""

    missed_rounds: int = 0
    """Rounds by which the swarm may be ahead of us; 0 if this node was not suspended lately."""
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _left: int = 0

    def ended(self, elapsed_s: float, waited_s: float) -> None:
        """Record that a round took `elapsed_s`, of which `waited_s` for peers beyond the usual."""
        usual_s = median(self._seconds) if len(self._seconds) >= LEAST else 0.0
        own_s = elapsed_s - waited_s
        if usual_s > 0.0 and own_s > TIMES * usual_s:
            self.missed_rounds, self._left = int(own_s / usual_s), ROUNDS
            return
        self._seconds.append(elapsed_s)
        self._left -= 1
        if self._left <= 0:
            self.missed_rounds = 0

    def caught_up(self) -> None:
        """Note that this node has reached its peers' round."""
        self.missed_rounds = self._left = 0
