"""Pulling from random peers: each round every node asks a few others that nobody chose, and nobody can make itself be asked.

Shapes: n members, ranks 0 … n − 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from starling.gossip.seeds import derive

_WORD = 8  # bytes of a draw: so wide that its remainder is as good as uniform


@dataclass(frozen=True, slots=True)
class Pull:
    """Each rank asks k others, uniformly at random without replacement and anew in every round; all models count the same, 1/(k + 1).

    Rows sum to 1, columns only in expectation: who is asked more often in a round counts more in it. So the average of all drifts
    by chance, and what is told must not be taken as a difference that both ends apply: it is for `starling.gossip.mix.gather`.
    With fewer than k others all of them are asked.

    Source: pull-based epidemic robust learning, RPEL, arXiv:2506.05579 (2025).

    Args:
        seed: root seed of the swarm, 0 <= seed < 2**63.
        k: peers asked in a round, >= 1.
    """

    seed: int
    k: int
    symmetric: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be >= 1, got {self.k}")

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Min(k, n − 1) entries."""
        k = min(self.k, n - 1)
        stream = hashlib.shake_256(derive(self.seed, "pull", n, round, rank).to_bytes(8, "little")).digest(_WORD * k)
        chosen: dict[int, None] = {}
        for place in range(k):  # Floyd's sampling: k draws, no permutation of n
            last = n - 1 - k + place
            drawn = int.from_bytes(stream[_WORD * place : _WORD * (place + 1)], "little") % (last + 1)
            chosen[last if drawn in chosen else drawn] = None
        return {other + (other >= rank): 1.0 / (k + 1) for other in chosen}

    def period(self, n: int) -> None:
        """Never repeats."""
        return
