"""Progress of the swarm, estimated from the rounds that peers report; some of them may be Byzantine."""

from __future__ import annotations

from dataclasses import dataclass, field


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
        """The furthest round that an honest peer has reached if fewer than a third of the peers are Byzantine; 0 without any report.

        The (f + 1)-th largest of m rounds with f = ⌊(m − 1)/3⌋, so f Byzantine peers cannot move it beyond an honest peer's round.
        """
        ordered = sorted(self.rounds.values(), reverse=True)
        return ordered[(len(ordered) - 1) // 3] if ordered else 0
