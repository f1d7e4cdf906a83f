"""An overlay: a ring whose members also meet the one across it."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ChordRing:
    chord: float = 0.2  # weight of the meeting across
    symmetric: ClassVar[bool] = True

    def __post_init__(self):
        if not 0.0 < self.chord < 0.5:
            raise ValueError(f"chord must be in (0, 0.5), got {self.chord}")

    def row(self, rank, n, round):
        across = {(rank + n // 2) % n: self.chord} if n % 2 == 0 and n > 3 else {}
        return {(rank - 1) % n: 0.25, (rank + 1) % n: 0.25} | across if n > 2 else {1 - rank: 0.5} if n == 2 else {}

    def period(self, n):
        return 1
