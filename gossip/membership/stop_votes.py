"""When a swarm stops because it no longer learns: each member votes by its own evaluations, and two thirds of the members decide.

A member votes to stop while its best value is `patience` rounds old or older, and takes the vote back when a better one comes. Votes come
from their members directly and are never passed on, so a member has one, whatever it says; the last one counts. Fewer than a third of the
members can neither stop the others nor, alone, keep two thirds from stopping.

Without I/O or clock. Shapes: n members.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from starling.gossip.limits import keep

MAX_VOTERS = 4096


@dataclass(slots=True)
class StopVotes:
    """One member's view.

    Args:
        patience: rounds, > 0.
        quorum: votes without which nothing is decided, however few members are seen: a member that is cut off does not stop by itself.
        higher_is_better: of the values.
    """

    patience: int
    quorum: int
    higher_is_better: bool
    best: float | None = None
    best_round: int = 0
    stalled: bool = False  # our own vote
    _votes: dict[str, bool] = field(default_factory=dict)

    def evaluated(self, round: int, value: float) -> None:
        """Our model after `round` rounds has this value; one that is no number is never better."""
        better = self.best is None or (value > self.best if self.higher_is_better else value < self.best)
        if math.isfinite(value) and better:
            self.best, self.best_round = value, round
        self.stalled = self.best is not None and round - self.best_round >= self.patience

    def voted(self, peer: str, stop: bool) -> None:
        """A member's vote, from itself."""
        keep(self._votes, peer, stop, MAX_VOTERS)

    def agreed(self, me: str, members: Sequence[str]) -> bool:
        """Whether two thirds of the members present, `me` among them, vote to stop."""
        votes = sum(self.stalled if peer == me else self._votes.get(peer, False) for peer in members)
        return votes >= self.quorum and 3 * votes >= 2 * len(members)
