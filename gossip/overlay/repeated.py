"""Several exchanges after each phase of local steps: only every Q-th round of an overlay begins with local steps.

The overlay's own rounds go on, so that all of a phase's exchanges are with other peers. DFedSAM with multiple gossip steps (MGS),
Shi et al. 2023 (arXiv:2302.04083).

Shapes: n members, ranks 0 … n − 1, Q exchanges a phase.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from starling.gossip.overlay.api import Overlay
from starling.gossip.overlay.stages import Stage


@dataclass(frozen=True, slots=True)
class Repeated:
    """`inner`, in cycles of `times` rounds."""

    inner: Overlay
    times: int  # Q >= 1

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"gossips must be >= 1, got {self.times}")

    @property
    def symmetric(self) -> bool:
        return self.inner.symmetric

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        return self.inner.row(rank, n, round)

    def period(self, n: int) -> int | None:
        """Return the period of the inner overlay in whole cycles."""
        inner = self.inner.period(n)
        return None if inner is None else math.lcm(inner, self.times)

    def cycle(self, n: int) -> int:
        """Return the rounds of a phase."""
        return self.times

    def stage(self, n: int, round: int) -> Stage:
        """Run local steps in a phase's first round, and install the average in its last."""
        position = round % self.times
        return Stage(local=position == 0, first=position == 0, last=position == self.times - 1)
