"""Choose how many of a round's local steps a node does, so that it keeps up with the swarm. No clock: seconds are arguments."""

from collections import deque
from dataclasses import dataclass, field

RECOVERY_ROUNDS = 10  # rounds after which a node that was late and keeps up does all of its local steps again
WINDOW = 8  # rounds since the last cut that tell whether this node's own work was slow
SLOWER = 1.05  # factor on the swarm's round time from which this node's own work counts as slow


@dataclass(slots=True)
class LocalSteps:
    """Number of local steps: fewer after the swarm did `passed` > 1 rounds in one of ours because our own work is slow; more while we keep
    up.

    Otherwise a node that is several times slower would be late for every exchange and train alone. Where a node was left behind because it
    waited for a peer it has no less time for its local steps, and does them all: fewer would be a gift to whoever kept it waiting.
    """

    most: int  # local steps of the manifest, >= 1
    now: int = field(init=False)  # local steps of the next round, in [1, most]
    _rounds: deque[tuple[int, float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def __post_init__(self) -> None:
        self.now = self.most

    def passed(self, passed: int, elapsed_s: float, waited_s: float) -> int:
        """Record a round of ours that took `elapsed_s`, of which `waited_s` for peers beyond the usual, while the swarm did `passed` >= 1
        -> `now`.
        """
        self._rounds.append((passed, elapsed_s, max(0.0, elapsed_s - waited_s)))
        behind = self._times_slower() if passed > 1 else 1.0
        if behind > SLOWER:
            self.now = max(1, self.now // passed)
            self._rounds.clear()
        else:
            self.now = min(self.most, self.now + max(1, self.most // RECOVERY_ROUNDS))
        return self.now

    def _times_slower(self) -> float:
        """Return this node's time of a round without waiting, divided by the swarm's."""
        passed, elapsed_s, own_s = (sum(column) for column in zip(*self._rounds, strict=True))
        return passed * own_s / (len(self._rounds) * elapsed_s) if elapsed_s > 0.0 else float(passed)
