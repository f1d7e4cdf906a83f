"""Marks against peers, of which each time that a peer does well forgives a part. No clock.

A peer that does well and ill by turns keeps its marks if it does ill in more than one of nine times; with a count that ends at the first
time that it does well, every second time would be free.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from starling.gossip.limits import keep

FORGIVEN = 1 / 8  # of a mark, each time
MAX_MARKED = 1024  # peers of which this is remembered

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Marks(Generic[K]):
    """How many marks each peer has, >= 0."""

    _of: dict[K, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._of)

    def add(self, peer: K) -> None:
        """Add a mark."""
        keep(self._of, peer, self.of(peer) + 1.0, MAX_MARKED)

    def forgive(self, peer: K) -> None:
        """Take a part of a mark back."""
        if self.of(peer) > FORGIVEN:
            self._of[peer] -= FORGIVEN
        else:
            self.forget(peer)

    def forget(self, peer: K) -> None:
        """Delete what is known of a peer."""
        self._of.pop(peer, None)

    def of(self, peer: K) -> float:
        """Return how many a peer has."""
        return self._of.get(peer, 0.0)

    @property
    def marked(self) -> frozenset[K]:
        """Return the peers with any part of one."""
        return frozenset(self._of)
