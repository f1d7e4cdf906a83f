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
    """When to give up; infinite while nobody is waited for."""
    _opened: float = 0.0
    _wait_s: float = inf
    _quickest: dict[str, float] = field(default_factory=dict)

    def begin(self, now: float) -> None:
        """Waiting begins."""
        self._opened, self._wait_s = now, self.patience.wait_s()
        self.expires = now + self._wait_s

    def end(self) -> None:
        """Nobody is waited for any more."""
        self.expires = inf

    def retry_s(self, peer: str) -> float:
        """Seconds without progress after which to try `peer` again."""
        return max(self._wait_s / TRIES, HASTE * self._quickest.get(peer, 0.0))

    def answered(self, peer: str, now: float) -> None:
        """The exchange with `peer` committed."""
        wait_s = now - self._opened
        self.patience.observe(wait_s)
        self._quickest[peer] = min(wait_s, FORGETTING * self._quickest.get(peer, inf))

    def missed(self) -> None:
        """A peer did not answer in time."""
        self.patience.observe_timeout()

    def forget(self, peer: str) -> None:
        """A peer is gone."""
        self._quickest.pop(peer, None)
