"""The base-(k+1) overlay and its parts: exact averaging in O(log n) rounds for every n, with at most k peers per round.

Theory of operation. A *hyper-hypercube* over m positions, m = f_1 · f_2 · …, all f <= k+1, writes a position in that mixed radix and
averages over one digit per round: every round is a set of cliques, and after all digits everyone holds the mean.

If n has larger prime factors, the *simple* schedule splits the ranks by the base-(k+1) digits of n into groups, largest
first; group l is `count` blocks of `block` = (k+1)^p ranks. Three phases:
  1. every group averages within itself (hyper-hypercube);
  2. one group per round meets all groups after it: each later rank takes one fresh rank in every block of the group,
     with the weight that makes the group's mean and the mean of the rest both equal the mean of all;
  3. a group that has met the rest averages within its blocks, while the next groups meet.

The *full* schedule cuts the ranks into P parts of q, where P takes all small prime factors of n: parts run the simple schedule side by
side, then ranks of equal position run a hyper-hypercube across the parts. The shorter of the two is used.

Exact only from round 0 of a period: all who use it must share the round counter and the member list.

A row is computed from its rank alone; only the plan (a few integers) is cached, so thousands of members cost nothing.

Source: Takezawa et al. 2023, "Beyond Exponential Graph: Communication-Efficient Topologies for Decentralized Learning
via Finite-time Convergence" (arXiv:2305.11420).

Shapes: n members, ranks 0 … n − 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import ClassVar

from starling.gossip.bounds import Degree, parameters


@parameters
class BaseK:
    """Base-(k+1): the product of one period's mixing matrices is exactly 11ᵀ/n, for every n.

    Args:
        k: most peers a node meets in one round, >= 1.
    """

    k: Degree = 1
    symmetric: ClassVar[bool] = True

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """At most k entries; `round` is taken modulo the period. Raises as `period`."""
        plan = self._schedule(n)
        return plan.row(rank, round % plan.length) if plan.length else {}

    def period(self, n: int) -> int:
        """Length of the schedule: at most 2 log_{k+1}(n) + 2."""
        return max(1, self._schedule(n).length)

    def _schedule(self, n: int) -> "_Simple | _Full":
        return _shorter(n, self.k)


@dataclass(frozen=True, slots=True)
class SimpleBaseK(BaseK):
    """The simple schedule alone: exact for every n like `BaseK`, often longer, never shorter."""

    def _schedule(self, n: int) -> "_Simple":
        return _simple(n, self.k)


@dataclass(frozen=True, slots=True)
class HyperHypercube(BaseK):
    """The k-peer hyper-hypercube alone: exact in one period from any round on, its rounds in any order.

    Defined where all prime factors of n are at most k + 1; the period is the fewest factors in 2 … k + 1 with product n.
    """

    def _schedule(self, n: int) -> "_Simple":
        """Raises ValueError where n has a prime factor above k + 1."""
        if _factors(n, self.k) is None:
            raise ValueError(
                f"hyper_hypercube with k = {self.k} needs members whose prime factors are at most k + 1 = {self.k + 1}, "
                f"got {n} (Takezawa et al. 2023, arXiv:2305.11420); base_k takes any number"
            )
        return _simple(n, self.k)


def _clique(position: int, factors: tuple[int, ...], digit: int, unit: int = 1) -> dict[int, float]:
    """Return the others that share all but one digit with `position`; digits in the radices `factors`, the lowest worth `unit`."""
    stride = unit * prod(factors[:digit])
    size = factors[digit]
    first = position - position // stride % size * stride
    members = range(first, first + size * stride, stride)
    return {other: 1.0 / size for other in members if other != position}


@dataclass(frozen=True, slots=True)
class _Group:
    """Ranks start … start + count·block − 1: one digit of n; radices of the whole group, and of one block, all k+1."""

    start: int
    count: int
    block: int
    inner: tuple[int, ...]
    radices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Simple:
    """Simple schedule of n ranks; a single group where n is a product of small factors."""

    n: int
    groups: tuple[_Group, ...]

    @property
    def length(self) -> int:
        first = self.groups[0]
        return len(first.inner) + (1 + len(first.radices) if len(self.groups) > 1 else 0)

    def row(self, rank: int, round: int) -> dict[int, float]:
        mine = max(g for g, group in enumerate(self.groups) if group.start <= rank)
        group = self.groups[mine]
        meeting = round - len(self.groups[0].inner)
        if mine >= meeting >= 0:
            return self._meet(rank, mine, meeting) if meeting < len(self.groups) - 1 else {}
        radices = group.inner if meeting < 0 else group.radices
        digit = round % max(1, len(radices)) if meeting < 0 else meeting - mine - 1
        clique = _clique(rank - group.start, radices, digit) if digit < len(radices) else {}
        return _shifted(clique, group.start)

    def _meet(self, rank: int, mine: int, meeting: int) -> dict[int, float]:
        """Phase 2: group `meeting` with everything after it; `mine` is one of those."""
        group = self.groups[meeting]
        rest = self.groups[meeting + 1].start
        weight = group.block / (self.n - group.start)
        if mine > meeting:
            first = group.start + rank - rest
            return {first + q * group.block: weight for q in range(group.count)}
        partner = rest + (rank - group.start) % group.block
        return {partner: weight} if partner < self.n else {}


@dataclass(frozen=True, slots=True)
class _Full:
    """Parts of `part.n` consecutive ranks run `part`; then equal positions run a hyper-hypercube across them."""

    part: _Simple
    across: tuple[int, ...]

    @property
    def length(self) -> int:
        return self.part.length + len(self.across)

    def row(self, rank: int, round: int) -> dict[int, float]:
        q = self.part.n
        if round < self.part.length:
            return _shifted(self.part.row(rank % q, round), rank - rank % q)
        return _clique(rank, self.across, round - self.part.length, unit=q)


def _shifted(row: dict[int, float], start: int) -> dict[int, float]:
    return {start + position: weight for position, weight in row.items()}


@lru_cache(maxsize=64)
def _shorter(n: int, k: int) -> _Simple | _Full:
    """Return the shorter schedule; the simple one if equal."""
    simple = _simple(n, k)
    q = _rough_part(n, k)
    if q in (1, n):
        return simple
    across = _factors(n // q, k)
    assert across is not None
    full = _Full(_simple(q, k), across)
    return full if full.length < simple.length else simple


@lru_cache(maxsize=64)
def _simple(n: int, k: int) -> _Simple:
    whole = _factors(n, k)
    if whole is not None:
        return _Simple(n, (_Group(0, 1, n, whole, ()),))
    groups: list[_Group] = []
    start = 0
    for p in reversed(range(n.bit_length())):
        block = (k + 1) ** p
        count = (n - start) // block
        if count:
            inner = _factors(count * block, k)
            assert inner is not None
            groups.append(_Group(start, count, block, inner, (k + 1,) * p))
            start += count * block
    return _Simple(n, tuple(groups))


def _rough_part(n: int, k: int) -> int:
    """Return n without its prime factors up to k+1."""
    for factor in range(2, k + 2):
        while n % factor == 0:
            n //= factor
    return n


@lru_cache(maxsize=1024)
def _factors(n: int, k: int) -> tuple[int, ...] | None:
    """Fewest factors in 2 … k+1 with product n, the largest first among equals; None if there are none.

    All are searched, with memory: taking the largest first gives 8·3·3·3 for n = 216 and k = 7, where 6·6·6 is shorter.
    """
    if n == 1:
        return ()
    best: tuple[int, ...] | None = None
    for factor in range(min(n, k + 1), 1, -1):
        if n % factor == 0:
            rest = _factors(n // factor, k)
            if rest is not None and (best is None or len(rest) + 1 < len(best)):
                best = (factor, *rest)
    return best
