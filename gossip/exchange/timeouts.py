"""How long to wait for a neighbor, when to try it again and when to give it up."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Protocol

WINDOW = 32
"""Outcomes remembered."""
ENOUGH = 5
"""Answers in the window before they are believed."""
SLACK = 0.05
"""Least spread, as a share of the median: answers that are all alike do not make the next one late."""
TRIES = 6
"""A deadline leaves room for so many tries where answers are quick."""
HASTE = 2.0
"""No retry before so many times the quickest answer of the peer: a payload on a slow link is under way, not lost."""
FORGETTING = 1.1
"""Growth of the remembered quickest answer at every answer, so that a link may become slower."""


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


class DeadlineEstimate(Protocol):
    """An adaptive deadline; `Deadline` is one."""

    def observe(self, wait_s: float) -> None:
        """A neighbor was waited for this long and answered."""
        ...

    def observe_timeout(self) -> None:
        """A neighbor did not answer before the deadline."""
        ...

    def wait_s(self) -> float:
        """How long to wait now."""
        ...


@dataclass(slots=True)
class Timeouts:
    """Waiting for links, one round or visit at a time.

    Args:
        deadline: the adaptive deadline.
    """

    deadline: DeadlineEstimate
    expires: float = inf
    """When to give up; infinite while no peer is waited for. A peer that was late the last time has less, see `until`."""
    _opened: float = 0.0
    _wait_s: float = inf
    _lag_s: float = 0.0
    _quickest: dict[str, float] = field(default_factory=dict)
    _late: set[str] = field(default_factory=set)

    def begin(self, now: float, lag_s: float = 0.0) -> None:
        """Waiting begins.

        A peer may be later than we are without a fault: it waited for another. So a peer that was in time the last time gets two `lag_s`
        beyond the learned deadline, one that was late gets one: a node that waits for a straggler is still waited for itself. With equal
        deadlines for all, one straggler would desynchronise the whole swarm.

        Args:
            now: seconds.
            lag_s: the time of a round's local steps: what a peer at work may lack.
        """
        self._opened, self._wait_s, self._lag_s = now, self.deadline.wait_s() + 2.0 * lag_s, lag_s
        self.expires = now + self._wait_s

    def until(self, peer: str) -> float:
        """When to give `peer` up."""
        return self.expires - self._lag_s if peer in self._late else self.expires

    def end(self) -> None:
        """Waiting is over."""
        self.expires = inf

    def retry_s(self, peer: str) -> float:
        """Seconds without progress after which to try `peer` again."""
        return max(self._wait_s / TRIES, HASTE * self._quickest.get(peer, 0.0))

    def answered(self, peer: str, now: float) -> None:
        """The exchange with `peer` committed."""
        wait_s = now - self._opened
        self._late.discard(peer)
        self.deadline.observe(wait_s)
        self._quickest[peer] = min(wait_s, FORGETTING * self._quickest.get(peer, inf))

    def missed(self, peer: str) -> None:
        """The peer did not answer in time. Perhaps its quickest answer was none, but one of several tries: retry sooner."""
        self._late.add(peer)
        if peer in self._quickest:
            self._quickest[peer] /= 2.0
        self.deadline.observe_timeout()

    def forget(self, peer: str) -> None:
        """A peer is gone."""
        self._quickest.pop(peer, None)
        self._late.discard(peer)
