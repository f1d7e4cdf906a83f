"""How long to wait for a neighbor: learned from how long neighbors took."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

WINDOW = 32
"""Outcomes remembered."""
ENOUGH = 5
"""Answers in the window before they are believed."""
SLACK = 0.05
"""Least spread, as a share of the median: answers that are all alike do not make the next one late."""


@dataclass(slots=True)
class Deadline:
    """An adaptive deadline: median + k · MAD of recent answers, between two bounds.

    MAD is the median absolute deviation, taken as at least SLACK · median. Fewer than ENOUGH answers among the last
    WINDOW outcomes: the upper bound.

    Timeouts take a place in the window but have no value, so they neither pull the deadline up nor down: one dead peer,
    even if every other outcome is its, changes nothing. If nearly all outcomes are timeouts the network has become
    slower than the deadline; then the answers run out, the upper bound holds, and the deadline is learned anew. Nor can
    it ratchet down by cutting off its own evidence: answers spread evenly up to the deadline put it at (1/2 + k/4) of
    itself, which k > 2 makes an increase.

    Args:
        min_wait_s: lower bound, > 0.
        max_wait_s: upper bound, >= min_wait_s.
        k: spreads beyond the median, > 2.
    """

    min_wait_s: float
    max_wait_s: float
    k: float = 4.0
    _outcomes: deque[float | None] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def __post_init__(self) -> None:
        if not 0.0 < self.min_wait_s <= self.max_wait_s:
            raise ValueError(f"need 0 < min_wait_s <= max_wait_s, got {self.min_wait_s} and {self.max_wait_s}")
        if self.k <= 2.0:
            raise ValueError(f"k must be > 2, got {self.k}")

    def observe(self, wait_s: float) -> None:
        """A neighbor was waited for this long and answered; >= 0."""
        self._outcomes.append(wait_s)

    def observe_timeout(self) -> None:
        """A neighbor did not answer before the deadline."""
        self._outcomes.append(None)

    def wait_s(self) -> float:
        """How long to wait now, in [min_wait_s, max_wait_s]."""
        answers = [wait for wait in self._outcomes if wait is not None]
        if len(answers) < ENOUGH:
            return self.max_wait_s
        middle = median(answers)
        spread = max(median(abs(wait - middle) for wait in answers), SLACK * middle)
        return min(max(middle + self.k * spread, self.min_wait_s), self.max_wait_s)
