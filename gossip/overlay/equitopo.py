"""The EquiTopo family: a few random shifts mix as fast as the exponential graph, for every n.

The basis graph A(u) links rank i to i + u mod n with weight (n − 1)/n and keeps 1/n. The static kinds average M basis
graphs of random shifts, the dynamic ones draw one a round and apply it with weight eta.

Source: Song et al. 2022, "Communication-Efficient Topologies for Decentralized Learning with O(1) Consensus Rate" (arXiv:2210.07881).

Deviations: a draw of shifts that leaves more than 0.8 of a disagreement is drawn again, because with about ln n shifts
one in twenty is not even connected; eta is 1/2 where the published code has 1, which all but swaps models.

Shapes: n members, ranks 0 … n − 1, W a mixing matrix, J = 11ᵀ/n. `seed` is the root seed of the swarm, 0 <= seed < 2**63.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from starling.gossip.bounds import AtLeastOne, PositiveShare, parameters
from starling.gossip.overlay.api import Aperiodic, Circulant, Static
from starling.gossip.seeds import derive

MOST_LEFT = 0.8  # ‖W − J‖₂ up to which a draw of static shifts is good enough
DRAWS = 64  # draws before a number of shifts is called too small for n


@parameters
class DirectedEquiStatic(Circulant, Static):
    """Rank i receives from i + u for M shifts u, the same in every round. Directed, degree at most M.

    ‖W − J‖₂ is about 0.65 for M = 2 ln n and at most MOST_LEFT.

    Args:
        basis: shifts M, >= 1; None: ⌈2 ln n⌉.
    """

    seed: int
    basis: AtLeastOne | None = None
    symmetric: ClassVar[bool] = False

    def shifts(self, n: int, round: int) -> Mapping[int, float]:
        """Return at most M shifts, or 2M if symmetric. Raises ValueError: M is too small for n."""
        return _static(self.seed, n, self.basis, both_ways=self.symmetric)


@dataclass(frozen=True, slots=True)
class UndirectedEquiStatic(DirectedEquiStatic):
    """Rank i and i ± u for M shifts u, the same in every round. Symmetric, degree at most 2M.

    ‖W − J‖₂ is about 0.55 for M = 2 ln n and at most MOST_LEFT.
    """

    symmetric: ClassVar[bool] = True


@parameters
class DirectedEquiDyn(Circulant, Aperiodic):
    """In each round rank i receives from i + u, one shift u for all, uniform in 1 … n − 1: (1 − eta) I + eta A(u).

    The expected squared disagreement about halves per round for eta = 1/2, for every n; for eta = 1 it hardly shrinks.

    Args:
        eta: in (0, 1].
    """

    seed: int
    eta: PositiveShare = 0.5
    symmetric: ClassVar[bool] = False

    def shifts(self, n: int, round: int) -> Mapping[int, float]:
        """Return one shift."""
        return {_shift(self.seed, n, round): self.eta * (n - 1) / n} if n > 1 else {}


@parameters
class UndirectedEquiDyn(Aperiodic):
    """In each round a matching along one random shift u: from a random rank onwards i meets i + u if both are still free.

    About 88 % of the members are matched, so that a random matching does as well at the same cost.

    Args:
        eta: in (0, 1]; the weight is eta (n − 1)/n.
    """

    seed: int
    eta: PositiveShare = 0.5
    symmetric: ClassVar[bool] = True

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Return one entry, or none for an idle node."""
        partner = _walk(self.seed, n, round)[rank]
        return {partner: self.eta * (n - 1) / n} if partner != rank else {}


def left(shifts: Mapping[int, float], n: int) -> float:
    """Return ‖W − J‖₂ of the doubly stochastic circulant W with these off-diagonal weights: its largest eigenvalue except 1."""
    if n == 1:
        return 0.0
    row = np.zeros(n)
    for shift, weight in shifts.items():
        row[shift] = weight
    row[0] = 1.0 - row.sum()
    return float(np.abs(np.fft.fft(row))[1:].max())


def drawn(seed: int, n: int, basis: int, attempt: int) -> tuple[int, ...]:
    """`basis` shifts, independent and uniform in 1 … n − 1."""
    return tuple(1 + derive(seed, "equi_static", n, basis, attempt, index) % (n - 1) for index in range(basis))


def averaged(basis: tuple[int, ...], n: int, *, both_ways: bool) -> dict[int, float]:
    """Shifts of (1/M) Σ A(u), or of (1/2M) Σ (A(u) + A(u)ᵀ)."""
    weights: dict[int, float] = {}
    for u in basis:
        for shift in (u, n - u) if both_ways else (u,):
            weights[shift] = weights.get(shift, 0.0) + (n - 1) / n / len(basis) / (1 + both_ways)
    return dict(sorted(weights.items()))


@lru_cache(maxsize=64)
def _static(seed: int, n: int, basis: int | None, *, both_ways: bool) -> Mapping[int, float]:
    if n == 1:
        return MappingProxyType({})
    enough = math.ceil(2 * math.log(n))
    count = enough if basis is None else basis
    for attempt in range(DRAWS):
        weights = averaged(drawn(seed, n, count, attempt), n, both_ways=both_ways)
        if left(weights, n) <= MOST_LEFT:
            return MappingProxyType(weights)
    raise ValueError(
        f"basis: none of {DRAWS} draws of {count} shifts leaves at most {MOST_LEFT} of a disagreement of {n} members, "
        f"take about 2 ln n = {enough} (Song et al. 2022, arXiv:2210.07881)"
    )


def _shift(seed: int, n: int, round: int) -> int:
    return 1 + derive(seed, "equi_dyn", n, round) % (n - 1)


@lru_cache(maxsize=8)
def _walk(seed: int, n: int, round: int) -> list[int]:
    """Return the partner of each rank, itself if idle."""
    partners = list(range(n))
    if n > 1:
        u, start = _shift(seed, n, round), derive(seed, "equi_dyn start", n, round) % n
        for step in range(start, start + n):
            i, j = step % n, (step + u) % n
            if partners[i] == i and partners[j] == j:
                partners[i], partners[j] = j, i
    return partners
