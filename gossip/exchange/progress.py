"""How far the swarm is, estimated from the rounds that peers report, some of whom may be Byzantine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


def credible_lead(rounds: Collection[int]) -> int:
    """The furthest round that at least one honest peer has reached if fewer than a third of the peers are Byzantine; 0 without any report.

    The (f + 1)-th largest of m rounds with f = ⌊(m − 1)/3⌋, so f Byzantine peers cannot move it beyond an honest peer's round.

    Args:
        rounds: the highest round reported by each peer.
    """
    ordered = sorted(rounds, reverse=True)
    return ordered[(len(ordered) - 1) // 3] if ordered else 0


@dataclass(slots=True)
class PeerProgress:
    """The highest round (slot) reported by each peer."""

    rounds: dict[str, int] = field(default_factory=dict)

    def record(self, peer: str, round: int) -> None:
        """A message of `peer` carries `round`; only an increase counts."""
        self.rounds[peer] = max(round, self.rounds.get(peer, 0))

    def of(self, peer: str) -> int:
        """The peer's highest round, 0 without any report."""
        return self.rounds.get(peer, 0)

    def forget(self, peer: str) -> None:
        """Discard the reports of a peer that is gone."""
        self.rounds.pop(peer, None)

    @property
    def lead(self) -> int:
        """The round the peers have credibly reached, 0 without any report."""
        return credible_lead(self.rounds.values())
