"""Graphs drawn once from a seed and then kept: every pair of members is an edge with the same probability.

Every node draws the whole graph, the same one, and keeps the last few; a draw that is not connected is thrown away.

Source: Erdős and Rényi 1959, "On random graphs I" (connectivity from p = ln n / n on).

Shapes: n members, ranks 0 … n − 1. `seed` is the root seed of the swarm, 0 <= seed < 2**63.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from starling.gossip.bounds import Positive, WeightRule, parameters
from starling.gossip.overlay.api import Static
from starling.gossip.overlay.weights import DegreeWeighted, edge_weight
from starling.gossip.seeds import derive

MOST_HALF = 4096  # members of the largest half-random graph: its n²/4 edges take 34 MB of memory


@parameters
class ErdosRenyi(DegreeWeighted, Static):
    """Each pair is an edge with probability p = (1 + factor) ln n / n: about (1 + factor) ln n neighbors.

    The spectral gap does not shrink with n: about 0.2 for factor 1.

    Args:
        factor: > 0. At 0 and below, large graphs are not connected.
        weights: a rule of `starling.gossip.overlay.weights`.
    """

    seed: int
    factor: Positive = 1.0
    weights: WeightRule = "metropolis_hastings"

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """About (1 + factor) ln n entries, at least one for n > 1."""
        return _row(connected_graph(self.seed, n, _share(n, self.factor)), rank, self.weights)


@parameters
class HalfRandom(DegreeWeighted, Static):
    """Each pair is an edge with probability 1/2: about n/2 neighbors, and a spectral gap that grows towards 1.

    Args:
        weights: a rule of `starling.gossip.overlay.weights`.
    """

    seed: int
    weights: WeightRule = "metropolis_hastings"

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """About n/2 entries. Raises ValueError: n > MOST_HALF."""
        if n > MOST_HALF:
            raise ValueError(f"half_random takes at most {MOST_HALF} members, got {n}: it holds n²/4 edges; take erdos_renyi")
        return _row(connected_graph(self.seed, n, 1 << 31), rank, self.weights)


@dataclass(frozen=True, slots=True)
class _Graph:
    """Rank i's neighbors are others[ends[i] : ends[i + 1]], ascending."""

    others: NDArray[np.int32]
    ends: NDArray[np.int64]
    degrees: NDArray[np.int64]
    largest: int


def _share(n: int, factor: float) -> int:
    """Edge probability in units of 2⁻³²: so coarse that no two machines' logarithms make different graphs of it."""
    return round(min(1.0, (1.0 + factor) * math.log(n) / n) * (1 << 32))


def _row(graph: _Graph, rank: int, weights: str) -> dict[int, float]:
    others = graph.others[graph.ends[rank] : graph.ends[rank + 1]]
    return {
        other: edge_weight(weights, len(others), theirs, graph.largest)
        for other, theirs in zip(others.tolist(), graph.degrees[others].tolist(), strict=True)
    }


@lru_cache(maxsize=4)
def connected_graph(seed: int, n: int, share: int) -> _Graph:
    """Return the first connected draw."""
    return next(graph for attempt in itertools.count() if _connected(graph := _draw(seed, n, share, attempt)))


def _draw(seed: int, n: int, share: int, attempt: int) -> _Graph:
    """Draw a graph in which every pair is an edge with probability `share` / 2³²."""
    first = np.concatenate([[0], np.cumsum(np.arange(n - 1, 0, -1))])  # index of the pair (i, i + 1), counted row by row
    pairs = successes(derive(seed, "graph", n, share, attempt), int(first[-1]), share)
    lower = np.searchsorted(first, pairs, side="right") - 1
    upper = pairs - first[lower] + lower + 1
    both = np.sort(np.concatenate([lower * n + upper, upper * n + lower]))
    degrees = np.bincount(both // n, minlength=n)
    return _Graph((both % n).astype(np.int32), np.concatenate([[0], np.cumsum(degrees)]), degrees, int(degrees.max()))


def successes(key: int, count: int, share: int) -> NDArray[np.int64]:
    """Return which of `count` trials succeed, each with probability `share` / 2³²: from gap to gap, so that misses cost nothing.

    Integers all the way from raw Philox words, which numpy promises never to change: a gap is at least k with probability
    (1 − share/2³²)ᵏ, which `longer` has in units of 2⁻⁶⁴ for some 44 / probability many k.
    """
    if not count:
        return np.zeros(0, dtype=np.int64)
    longer = [1 << 64]
    while longer[-1]:
        longer.append(longer[-1] * ((1 << 32) - share) >> 32)
    ascending = np.array(longer[:0:-1], dtype=np.uint64)
    words = np.random.Philox(key=key)
    found = [np.array([-1])]
    while found[-1][-1] < count:
        drawn = words.random_raw(count * share // (1 << 32) + 64)
        gaps = len(ascending) - np.searchsorted(ascending, drawn, side="right")
        found.append(found[-1][-1] + np.cumsum(gaps + 1))
    hits = np.concatenate(found[1:])
    return hits[hits < count]


def _connected(graph: _Graph) -> bool:
    reached = np.zeros(len(graph.degrees), dtype=bool)
    reached[0] = True
    waiting = [0]
    while waiting:
        rank = waiting.pop()
        others = graph.others[graph.ends[rank] : graph.ends[rank + 1]]
        fresh = others[~reached[others]]
        reached[fresh] = True
        waiting.extend(fresh.tolist())
    return bool(reached.all())
