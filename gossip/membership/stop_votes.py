"""Early stopping of a swarm that no longer improves: each member votes by its own evaluations, and two thirds decide.

A member votes to stop while its best value is at least `patience` rounds old, and withdraws the vote when a better one comes. Members send
their votes directly, and nobody forwards them, so each member has one vote: its last one. Only electors' votes count
(`starling.gossip.quorum`), and a member that still improves continues in any case.

Without I/O or clock.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from starling.gossip.limits import keep
from starling.gossip.quorum import two_thirds

MAX_VOTERS = 4096


@dataclass(slots=True)
class StopVotes:
    """One member's view of the votes.

    Args:
        patience: rounds, > 0.
        alone: whether a member that has exchanged with nobody may stop by itself.
        higher_is_better: of the values.
    """

    patience: int
    alone: bool
    higher_is_better: bool
    best: float | None = None
    best_round: int = 0
    stalled: bool = False  # our own vote
    received: dict[str, bool] = field(default_factory=dict)  # votes by member, at most MAX_VOTERS

    def evaluated(self, round: int, value: float) -> None:
        """Take the value of our model after `round` rounds; one that is not finite is never better."""
        better = self.best is None or (value > self.best if self.higher_is_better else value < self.best)
        if math.isfinite(value) and better:
            self.best, self.best_round = value, round
        self.stalled = self.best is not None and round - self.best_round >= self.patience

    def voted(self, peer: str, stop: bool) -> None:
        """Store a member's own vote."""
        keep(self.received, peer, stop, MAX_VOTERS)

    def forget(self, peer: str) -> None:
        """Drop the vote of a departed or restarted member."""
        self.received.pop(peer, None)

    def agreed(self, electors: Collection[str]) -> bool:
        """Return whether this member and two thirds of it and its electors vote to stop."""
        return (self.alone or bool(electors)) and two_thirds(self.stalled, self.received, electors)
