"""Random choices from a seed and a counter, independent of the platform and of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starling.gossip.seeds import derive


@dataclass(slots=True)
class Sampler:
    """A reproducible sequence of draws; 0 <= seed < 2**63."""

    seed: int
    _draws: int = 0

    def draw(self) -> float:
        """Return a uniform number in [0, 1)."""
        self._draws += 1
        return (derive(self.seed, self._draws) >> 10) / 2**53

    def sample(self, items: Sequence[str], k: int) -> tuple[str, ...]:
        """min(k, len(items)) distinct items in random order."""
        pool = list(items)
        return tuple(pool.pop(int(self.draw() * len(pool))) for _ in range(min(k, len(pool))))
