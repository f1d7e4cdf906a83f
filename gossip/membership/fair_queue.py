"""Answers that are few for all peers together: of those that asked since the last, the one is answered whose turn was longest ago."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class FairQueue(Generic[T]):
    """Turns `every_s` apart, the first at once. Who asks all the time gets none that another peer asked for; who missed one asks again."""

    every_s: float
    _asked: dict[str, T] = field(default_factory=dict)  # each peer's last request since its last turn
    _last: dict[str, float] = field(default_factory=dict)  # turn of each peer
    _free_at: float = -inf

    @property
    def deadline(self) -> float:
        """Time of the next `take`; infinite without requests."""
        return self._free_at if self._asked else inf

    def ask(self, peer: str, what: T) -> None:
        """Add a peer's request."""
        self._asked[peer] = what

    def withdraw(self, peer: str) -> None:
        """Remove a peer's request."""
        self._asked.pop(peer, None)

    def take(self, now: float) -> tuple[str, T] | None:
        """Return the peer to answer now, and its request; None if there is none."""
        if not self._asked or now < self._free_at:
            return None
        peer = min(self._asked, key=lambda each: self._last.get(each, -inf))
        turn = peer, self._asked[peer]
        self._asked.clear()
        self._last[peer], self._free_at = now, now + self.every_s
        return turn

    def keep(self, peers: Container[str]) -> None:
        """Forget all other peers."""
        self._last = {peer: at for peer, at in self._last.items() if peer in peers}
