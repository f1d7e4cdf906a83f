"""Periodic global averaging: every so often all models become their mean, by a sweep of base-(k+1).

Theory of operation. A sweep is one period of the base-(k+1) overlay, L rounds, whose mixing matrices multiply to J.
Position c in a cycle (`round` modulo its length):

    overlap off   H + L − 1 rounds. Local steps while c < H; exchanges of the inner overlay while c < H − 1, then the sweep, whose first
                  round ends the last round with local steps. So models change by nothing else during a sweep: an exact all-reduce.
    overlap on    max(H, L) rounds, local steps in all of them; the last L are the sweep, and average later local steps only in part.

Inner rounds are counted on their own, so that the inner overlay never skips one. A lone member has a sweep of one empty round. Exact only
without joins and leaves within a sweep: the number of members sets its length.

With an inner overlay this is Gossip-PGA, Chen et al. 2021 (arXiv:2105.09080); with `Alone` it is local SGD, Stich 2019 (arXiv:1805.09767).

Shapes: n members, ranks 0 … n − 1, H rounds of local steps in a cycle, L rounds of a sweep, J = 11ᵀ/n.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from starling.gossip.overlay.api import Overlay
from starling.gossip.overlay.base_k import BaseK
from starling.gossip.overlay.stages import Stage


@dataclass(frozen=True, slots=True)
class Periodic:
    """`inner`, and an exact average by a sweep of base-(k+1) once a cycle."""

    inner: Overlay  # overlay of the rounds before the sweep
    every: int  # H, rounds with local steps in a cycle, >= 1
    k: int = 1  # largest number of peers of a node in a round of the sweep, >= 1
    overlap: bool = False  # whether local steps continue during the sweep

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"average_every must be >= 1, got {self.every}")
        BaseK(self.k)  # raises ValueError for k < 1

    @property
    def symmetric(self) -> bool:
        """Return whether `inner` is symmetric; sweeps always are."""
        return self.inner.symmetric

    def cycle(self, n: int) -> int:
        """Return the rounds of a cycle."""
        sweep = BaseK(self.k).period(n)
        return max(self.every, sweep) if self.overlap else self.every + sweep - 1

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Return the row of the inner overlay or of the sweep."""
        sweep = BaseK(self.k)
        cycles, position = divmod(round, self.cycle(n))
        before = self.cycle(n) - sweep.period(n)
        if position < before:
            return self.inner.row(rank, n, cycles * before + position)
        return sweep.row(rank, n, position - before)

    def period(self, n: int) -> int | None:
        """Return as many cycles as the inner overlay needs to return to its phase."""
        before = self.cycle(n) - BaseK(self.k).period(n)
        inner = self.inner.period(n) if before else 1
        return None if inner is None else self.cycle(n) * (inner // math.gcd(inner, before))

    def stage(self, n: int, round: int) -> Stage:
        """Return the purpose of a round, with n members. Before a sweep nothing begins or is complete."""
        position, cycle = round % self.cycle(n), self.cycle(n)
        return Stage(
            local=self.overlap or position < self.every, first=position == cycle - BaseK(self.k).period(n), last=position == cycle - 1
        )
