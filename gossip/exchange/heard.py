"""How far the peers say they are."""

from __future__ import annotations

from dataclasses import dataclass, field

from gossip.exchange.lead import credible_lead


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
