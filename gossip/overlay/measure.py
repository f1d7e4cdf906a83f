"""What an overlay costs and how well it mixes, as numbers: for tables, studies and plots, never for a running node.

Everything is computed from rows. What needs W as an array says so and is meant for up to about a thousand members.

Shapes: n members, ranks 0 … n − 1; e weights > 0 beside the diagonal; W (n, n) float64; J = 11ᵀ/n.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from starling.gossip.overlay.api import Overlay
from starling.gossip.overlay.weights import Matrix, residual
from starling.gossip.seeds import derive

Values = NDArray[np.float64]

EXACT = 1e-12
"""‖∏W − J‖ up to which an average counts as exact: rounding of double precision, and nothing that is left by design."""
LEAP = 1e-3
"""Share that no single round of an overlay that only contracts gets below, so that what does is exact by design."""


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of one round's W, sparse.

    Args:
        n: members.
        to: (e,) rank that receives, ascending.
        source: (e,) rank it receives from.
        weight: (e,) float64.
    """

    n: int
    to: NDArray[np.int64]
    source: NDArray[np.int64]
    weight: Values

    def apply(self, x: Values) -> Values:
        """W x, for x (n,) or (n, s)."""
        mixed = x.copy()
        if len(self.to):
            shape = (-1,) + (1,) * (x.ndim - 1)
            receivers, first = np.unique(self.to, return_index=True)
            mixed[receivers] += np.add.reduceat(
                self.weight.reshape(shape) * (x[self.source] - x[self.to]), first, axis=0
            )
        return mixed

    def dense(self) -> Matrix:
        """W."""
        W = np.zeros((self.n, self.n))
        W[self.to, self.source] = self.weight
        W[np.diag_indices(self.n)] = 1.0 - W.sum(axis=1)
        return W


@dataclass(frozen=True, slots=True)
class Degree:
    """How many others a node receives from."""

    largest: int
    mean: float


@dataclass(frozen=True, slots=True)
class Walk:
    """What happens to values that are only mixed.

    Args:
        consensus_error: (rounds + 1,) mean squared deviation from the mean, relative to the start's.
        messages_per_node: (rounds + 1,) sent by a node up to then, on average.
    """

    consensus_error: Values
    messages_per_node: Values


def rows(overlay: Overlay, n: int, round: int) -> Rows:
    """All rows of one round.

    Raises:
        ValueError: the overlay's kind is undefined for n.
    """
    asked = [overlay.row(rank, n, round) for rank in range(n)]
    to = np.repeat(np.arange(n), np.array([len(row) for row in asked], dtype=np.int64))
    source = np.array([other for row in asked for other in row], dtype=np.int64)
    weight = np.array([w for row in asked for w in row.values()], dtype=np.float64)
    return Rows(n, to, source, weight)


def sequence(overlay: Overlay, n: int, count: int, start: int = 0) -> Iterator[Rows]:
    """`count` rounds from `start` on; a period that comes again is asked for once."""
    period = overlay.period(n)
    if period is None or period >= count:
        yield from (rows(overlay, n, t) for t in range(start, start + count))
        return
    known = [rows(overlay, n, t) for t in range(start, start + period)]
    yield from (known[t % period] for t in range(count))


def degree(overlay: Overlay, n: int, count: int, start: int = 0) -> Degree:
    """Others that a node receives from in any of `count` rounds: of one round by itself, or of the union over a period."""
    pairs = np.concatenate([each.to * n + each.source for each in sequence(overlay, n, count, start)])
    degrees = np.bincount(np.unique(pairs) // n, minlength=n)
    return Degree(int(degrees.max()), float(degrees.mean()))


def messages(overlay: Overlay, n: int, count: int) -> float:
    """Vectors that a node sends in a round, the mean over nodes and `count` rounds.

    Where directed overlays are symmetrised into pairwise exchanges a node sends and receives both ways: twice as many.
    """
    return sum(len(each.to) for each in sequence(overlay, n, count)) / (n * count)


def start(seed: int, n: int) -> Values:
    """(n,) Gaussian values with mean 0 and variance 1 exactly, n >= 2."""
    u = (np.random.Philox(key=derive(seed, "start", n)).random_raw(2 * n) / 2.0**64).reshape(2, n)
    x = np.sqrt(-2.0 * np.log1p(-u[0])) * np.cos(2.0 * np.pi * u[1])
    x -= x.mean()
    return np.asarray(x / x.std())


def walk(overlay: Overlay, x: Values, count: int) -> Walk:
    """Mix `x` for `count` rounds.

    Args:
        overlay: which; rows must sum to 1.
        x: (n,) or (n, s), not all equal.
        count: rounds, >= 0.
    """
    errors, sent = [spread(x)], [0.0]
    for each in sequence(overlay, len(x), count):
        x = each.apply(x)
        errors.append(spread(x))
        sent.append(sent[-1] + len(each.to) / len(x))
    return Walk(np.array(errors) / errors[0], np.array(sent))


def spread(x: Values) -> float:
    """Mean squared deviation from the mean over members; x (n,) or (n, s)."""
    return float(np.mean((x - x.mean(axis=0)) ** 2))


def left(overlay: Overlay, n: int, count: int, start: int = 0) -> float:
    """‖∏W − J‖₂ over `count` rounds from `start` on: the largest share of a disagreement that can be left. Dense."""
    each = (rows.dense() for rows in sequence(overlay, n, count, start))
    return residual(reduce(lambda P, W: W @ P, each, np.eye(n)))


def gap(overlay: Overlay, n: int, count: int) -> float:
    """Spectral gap per round of `count` rounds, 1 − ‖∏W − J‖₂^(1/count): 1 if they average exactly by design. Dense.

    For one round of a static overlay it is the spectral gap of W. It is taken over fewer rounds where all disagreement decays to
    EXACT before.
    """
    P = np.eye(n)
    used = 0
    for each in sequence(overlay, n, count):
        further = each.dense() @ P
        now = float(np.linalg.norm(further - 1.0 / n))
        if now <= EXACT:
            if now <= LEAP * float(np.linalg.norm(P - 1.0 / n)):
                return 1.0
            break
        P = further
        used += 1
    return 1.0 - math.pow(residual(P), 1.0 / used)


def finite_time(overlay: Overlay, n: int, most: int) -> int | None:
    """Rounds from round 0 after which every node holds the mean by design; None if there is no such round in `most`. Dense.

    By design: one round takes ‖∏W − J‖_F to EXACT and below LEAP of what it was. Any overlay that mixes gets to EXACT in time.
    """
    P = np.eye(n)
    before = float(np.linalg.norm(P - 1.0 / n))
    if before <= EXACT:
        return 0
    for done, each in enumerate(sequence(overlay, n, most), 1):
        P = each.dense() @ P
        now = float(np.linalg.norm(P - 1.0 / n))
        if now <= EXACT:
            return done if now <= LEAP * before else None
        before = now
    return None


def phases(overlay: Overlay, n: int, count: int) -> tuple[float, ...]:
    """What `count` rounds leave if begun in round 0, 1, … `count` − 1: whether it matters to be in phase. Dense."""
    return tuple(left(overlay, n, count, start) for start in range(count))


def contraction(overlay: Overlay, n: int, samples: int) -> float:
    """λ_max(E WᵀW − J): the share of a squared disagreement that a round is expected to leave, in the worst direction. Dense.

    The expectation is the mean over rounds 0 … samples − 1, so it is for overlays that draw every round anew.
    """
    mean = np.zeros((n, n))
    for each in sequence(overlay, n, samples):
        W = each.dense()
        mean += W.T @ W / samples
    return float(np.linalg.eigvalsh(mean - 1.0 / n)[-1])
