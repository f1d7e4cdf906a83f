"""How far the swarm is, judged by what peers say of themselves when some may lie."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


def credible_lead(rounds: Collection[int]) -> int:
    """The furthest round that at least one honest peer has reached if fewer than a third of the peers lie; 0 if nobody spoke.

    The (f + 1)-th largest of m rounds with f = ⌊(m − 1)/3⌋: f liars who claim the end of time move nobody.

    Args:
        rounds: the highest round heard of each peer.
    """
    ordered = sorted(rounds, reverse=True)
    return ordered[(len(ordered) - 1) // 3] if ordered else 0


@dataclass(slots=True)
class Heard:
    """The highest round (slot) heard of each peer."""

    rounds: dict[str, int] = field(default_factory=dict)

    def note(self, peer: str, round: int) -> None:
        """A peer said that it is at `round`."""
        self.rounds[peer] = max(round, self.rounds.get(peer, 0))

    def of(self, peer: str) -> int:
        """The peer's highest round, 0 if it has not spoken."""
        return self.rounds.get(peer, 0)

    def forget(self, peer: str) -> None:
        """A peer is gone: what it said counts no more."""
        self.rounds.pop(peer, None)

    @property
    def lead(self) -> int:
        """The round the peers have credibly reached, 0 if none spoke."""
        return credible_lead(self.rounds.values())
