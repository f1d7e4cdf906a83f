"""The round that a stage of a crew goes on in, as others of it may be in a later one; pure.

A round is gone to if f + 1 other stages are in it or a later one, as anywhere else (`starling.gossip.quorum`). One stage alone may be ahead
by the end of a step that the others could not finish, after which they are a round apart; so its word moves this one, too, but by few
rounds in all. A stage that is further behind, in a swarm of several crews, learns so from members with the same stage, as any node does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starling.gossip.quorum import credible

MOST = 4
"""Rounds by which single stages may move this one: of a run of 400 rounds one in a hundred."""
EARNED = 1 / 32  # for each round that is done


@dataclass(slots=True)
class LaterRounds:
    """Rounds by which single stages may still move this one."""

    left: float = MOST

    def following(self, own: int, others: Sequence[int], *, alone: bool) -> int:
        """Return the round to do, `own` or a later one, by what the N − 1 >= 1 other stages say.

        `alone`: there is no other crew, so that in a crew of two nobody else could know, or be harmed.
        """
        if alone and len(others) == 1:
            return max(own, *others)
        believed = max(own, credible(others))
        moved = min(max(0, max(others) - believed), int(self.left))
        self.left -= moved
        return believed + moved

    def done(self) -> None:
        """Note that a round was done."""
        self.left = min(MOST, self.left + EARNED)
