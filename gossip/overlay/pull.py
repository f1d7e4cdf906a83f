"""Pulling from random peers: each round every node draws a few others; a peer cannot influence who pulls from it."""

import hashlib
from collections.abc import Mapping
from typing import ClassVar

from starling.gossip.bounds import Degree, parameters
from starling.gossip.overlay.api import Aperiodic
from starling.gossip.seeds import derive

_WORD = 8  # bytes of a draw: wide enough for an almost uniform remainder


@parameters
class Pull(Aperiodic):
    """Each rank pulls from k others, drawn uniformly without replacement in every round; all models have weight 1/(k + 1).

    Rows sum to 1, columns only in expectation: a peer drawn more often in a round counts more in it. So the average of all drifts
    randomly, and a pulled vector is not a difference that both ends apply: this overlay is for `starling.gossip.mix.gather`.
    With fewer than k others all of them are drawn.

    Source: pull-based epidemic robust learning, RPEL, arXiv:2506.05579 (2025).

    Args:
        k: peers pulled from in a round, >= 1.
    """

    seed: int
    k: Degree = 1
    symmetric: ClassVar[bool] = False

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Return min(k, n − 1) entries."""
        k = min(self.k, n - 1)
        stream = hashlib.shake_256(derive(self.seed, "pull", n, round, rank).to_bytes(8, "little")).digest(_WORD * k)
        chosen: dict[int, None] = {}
        for place in range(k):  # Floyd's sampling: k draws, no permutation of n
            last = n - 1 - k + place
            drawn = int.from_bytes(stream[_WORD * place : _WORD * (place + 1)], "little") % (last + 1)
            chosen[last if drawn in chosen else drawn] = None
        return {other + (other >= rank): 1.0 / (k + 1) for other in chosen}
