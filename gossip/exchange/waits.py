"""When to try again and when to give up: one deadline for all links waited for, a retry time for each."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Protocol

TRIES = 6
"""A deadline leaves room for so many tries where answers are quick."""
HASTE = 2.0
"""No retry before so many times the quickest answer of the peer: a payload on a slow link is under way, not lost."""
FORGETTING = 1.1
"""Growth of the remembered quickest answer at every answer, so that a link may become slower."""


class Patience(Protocol):
    """An adaptive deadline; `gossip.exchange.deadline.Deadline` is one."""

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
class Waits:
    """Waiting for links, one round or visit at a time.

    Args:
        patience: the adaptive deadline.
    """

    patience: Patience
    expires: float = inf
    """When to give up; infinite while nobody is waited for. Who was late the last time has less, see `until`."""
    _opened: float = 0.0
    _wait_s: float = inf
    _lag_s: float = 0.0
    _quickest: dict[str, float] = field(default_factory=dict)
    _late: set[str] = field(default_factory=set)

    def begin(self, now: float, lag_s: float = 0.0) -> None:
        """Waiting begins.

        A peer may be later than we are without a fault: it waited for another. So whoever was in time the last time gets two `lag_s`
        beyond what was learned, who was late one: a node that waits for a straggler is still waited for itself, where equal patience
        with all would let one straggler drive everybody apart.

        Args:
            now: seconds.
            lag_s: the time of a round's local steps: what a peer at work may lack.
        """
        self._opened, self._wait_s, self._lag_s = now, self.patience.wait_s() + 2.0 * lag_s, lag_s
        self.expires = now + self._wait_s

    def until(self, peer: str) -> float:
        """When to give `peer` up."""
        return self.expires - self._lag_s if peer in self._late else self.expires

    def end(self) -> None:
        """Nobody is waited for any more."""
        self.expires = inf

    def retry_s(self, peer: str) -> float:
        """Seconds without progress after which to try `peer` again."""
        return max(self._wait_s / TRIES, HASTE * self._quickest.get(peer, 0.0))

    def answered(self, peer: str, now: float) -> None:
        """The exchange with `peer` committed."""
        wait_s = now - self._opened
        self._late.discard(peer)
        self.patience.observe(wait_s)
        self._quickest[peer] = min(wait_s, FORGETTING * self._quickest.get(peer, inf))

    def missed(self, peer: str) -> None:
        """The peer did not answer in time. Perhaps its quickest answer was none, but one of several tries: retry sooner."""
        self._late.add(peer)
        if peer in self._quickest:
            self._quickest[peer] /= 2.0
        self.patience.observe_timeout()

    def forget(self, peer: str) -> None:
        """A peer is gone."""
        self._quickest.pop(peer, None)
        self._late.discard(peer)
