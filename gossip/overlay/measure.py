"""Cost and mixing speed of overlays, and spectral conditions of mixing algorithms: for checks, tables and plots, not used during training.

Everything is computed from rows. Functions marked "Dense" build W as an array; they are for up to about a thousand members.

Shapes: n members, ranks 0 … n − 1; e weights > 0 beside the diagonal; W (n, n) float64, W[i, j] is the weight that i gives to what it
receives from j; J = 11ᵀ/n.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from starling.gossip.overlay.api import Overlay
from starling.gossip.seeds import derive

Matrix = NDArray[np.float64]
Values = NDArray[np.float64]

EXACT = 1e-12  # ‖∏W − J‖ up to which an average counts as exact: rounding of double precision
D2_BOUND = -1.0 / 3.0
"""Lower bound of λ_min(W) for D². Tang et al. 2018 (arXiv:1803.07068). An even ring is at the bound; D² is still stable there."""
LEAP = 1e-3  # no single round of an overlay that only contracts leaves less than this share; a round that does is exact by design


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of one round's W, sparse: rank `to` (e,), ascending, receives from `source` (e,) with `weight` (e,)."""

    n: int
    to: NDArray[np.int64]
    source: NDArray[np.int64]
    weight: Values

    def apply(self, x: Values) -> Values:
        """Return W x, for x (n,) or (n, s)."""
        mixed = x.copy()
        if len(self.to):
            shape = (-1,) + (1,) * (x.ndim - 1)
            receivers, first = np.unique(self.to, return_index=True)
            mixed[receivers] += np.add.reduceat(self.weight.reshape(shape) * (x[self.source] - x[self.to]), first, axis=0)
        return mixed

    def dense(self) -> Matrix:
        """Return W."""
        W = np.zeros((self.n, self.n))
        W[self.to, self.source] = self.weight
        W[np.diag_indices(self.n)] = 1.0 - W.sum(axis=1)
        return W


@dataclass(frozen=True, slots=True)
class Degree:
    """Number of peers that a node receives from."""

    largest: int
    mean: float


@dataclass(frozen=True, slots=True)
class Walk:
    """Values that are only mixed, after 0, 1, … rounds."""

    consensus_error: Values  # mean squared deviation from the mean, relative to the start's
    messages_per_node: Values  # sent by a node up to then, on average


def rows(overlay: Overlay, n: int, round: int) -> Rows:
    """Return all rows of one round. Raises ValueError: the overlay's kind is undefined for n."""
    all_rows = [overlay.row(rank, n, round) for rank in range(n)]
    to = np.repeat(np.arange(n), np.array([len(row) for row in all_rows], dtype=np.int64))
    source = np.array([other for row in all_rows for other in row], dtype=np.int64)
    weight = np.array([w for row in all_rows for w in row.values()], dtype=np.float64)
    return Rows(n, to, source, weight)


def matrix(overlay: Overlay, n: int, round: int) -> Matrix:
    """W (n, n) of one round; the diagonal is 1 minus the rest of the row. Raises ValueError: the overlay's kind is undefined for n."""
    return rows(overlay, n, round).dense()


def symmetrised(W: Matrix) -> Matrix:
    """Return (W + Wᵀ)/2: doubly stochastic if W is, and usable by pairwise exchanges."""
    return (W + W.T) / 2.0


def residual(W: Matrix) -> float:
    """‖W − J‖₂: what one application of a doubly stochastic W leaves of any disagreement, at most."""
    return float(np.linalg.norm(W - 1.0 / len(W), ord=2))


def sequence(overlay: Overlay, n: int, count: int, start: int = 0) -> Iterator[Rows]:
    """`count` rounds from `start` on; the rounds of a period are computed once."""
    period = overlay.period(n)
    if period is None or period >= count:
        yield from (rows(overlay, n, t) for t in range(start, start + count))
        return
    known = [rows(overlay, n, t) for t in range(start, start + period)]
    yield from (known[t % period] for t in range(count))


def degree(overlay: Overlay, n: int, count: int, start: int = 0) -> Degree:
    """Return the number of peers that a node receives from in any of `count` rounds: of a single round, or of the union over a period."""
    pairs = np.concatenate([each.to * n + each.source for each in sequence(overlay, n, count, start)])
    degrees = np.bincount(np.unique(pairs) // n, minlength=n)
    return Degree(int(degrees.max()), float(degrees.mean()))


def messages(overlay: Overlay, n: int, count: int) -> float:
    """Vectors that a node sends in a round, the mean over nodes and `count` rounds.

    Where directed overlays are symmetrised into pairwise exchanges a node sends and receives both ways: twice as many.
    """
    return sum(len(each.to) for each in sequence(overlay, n, count)) / (n * count)


def start(seed: int, n: int) -> Values:
    """Return (n,) Gaussian values with mean 0 and variance 1 exactly, n >= 2."""
    u = (np.random.Philox(key=derive(seed, "start", n)).random_raw(2 * n) / 2.0**64).reshape(2, n)
    x = np.sqrt(-2.0 * np.log1p(-u[0])) * np.cos(2.0 * np.pi * u[1])
    x -= x.mean()
    return np.asarray(x / x.std())


def walk(overlay: Overlay, x: Values, count: int) -> Walk:
    """Mix `x`, (n,) or (n, s) and not all equal, for `count` rounds."""
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

    For one round of a static overlay it is the spectral gap of W. Taken over fewer rounds where all disagreement decays to EXACT before.
    """
    used, P, before = 0, np.eye(n), math.inf
    for done, (product, norm) in enumerate(_products(overlay, n, count)):
        if norm <= EXACT:
            if norm <= LEAP * before:
                return 1.0
            break
        used, P, before = done, product, norm
    return 1.0 - math.pow(residual(P), 1.0 / used)


def finite_time(overlay: Overlay, n: int, most: int) -> int | None:
    """Return the rounds from round 0 after which every node has the mean by design; None if none of the first `most` rounds. Dense.

    By design: one round takes ‖∏W − J‖_F to EXACT and below LEAP of its value. Any overlay that mixes reaches EXACT in time.
    """
    before = math.inf
    for done, (_, norm) in enumerate(_products(overlay, n, most)):
        if norm <= EXACT:
            return done if norm <= LEAP * before else None
        before = norm
    return None


def _products(overlay: Overlay, n: int, count: int) -> Iterator[tuple[Matrix, float]]:
    """∏W and ‖∏W − J‖_F after 0, 1, … `count` rounds."""
    P = np.eye(n)
    yield P, float(np.linalg.norm(P - 1.0 / n))
    for each in sequence(overlay, n, count):
        P = each.dense() @ P
        yield P, float(np.linalg.norm(P - 1.0 / n))


def phases(overlay: Overlay, n: int, count: int) -> tuple[float, ...]:
    """Return the disagreement left by `count` rounds that begin in round 0, 1, … `count` − 1: the effect of the phase. Dense."""
    return tuple(left(overlay, n, count, start) for start in range(count))


def contraction(overlay: Overlay, n: int, samples: int) -> float:
    """Return λ_max(E WᵀW − J): the expected share of a squared disagreement left by a round, in the worst direction. Dense.

    The expectation is the mean over rounds 0 … samples − 1, so it is for overlays that draw every round anew.
    """
    mean = np.zeros((n, n))
    for each in sequence(overlay, n, samples):
        W = each.dense()
        mean += W.T @ W / samples
    return float(np.linalg.eigvalsh(mean - 1.0 / n)[-1])


def check_static(W: Matrix, *, lazy: bool) -> None:
    """Raise ValueError unless D², or exact diffusion, which applies (I + W)/2 (`lazy`), can use this matrix in every round."""
    if np.abs(W - W.T).max() > EXACT:
        raise ValueError("needs a symmetric mixing matrix (Yuan et al. 2019, arXiv:1702.05122): this overlay is directed")
    least = float(np.linalg.eigvalsh(W)[0])
    if not lazy and least < D2_BOUND - EXACT:
        raise ValueError(
            f"d2 needs a mixing matrix with lambda_min > -1/3 (Tang et al. 2018, arXiv:1803.07068), this one has {least:.3f}; "
            "exact_diffusion takes it"
        )


def chi(rates: NDArray[np.float64]) -> tuple[float, float]:
    """χ1 and χ2 of A2CiD2, in units of the time that rates are per.

        Λ = Σ_{i<j} rate_ij (e_i − e_j)(e_i − e_j)ᵀ,   χ1 = 1/λ_2(Λ),   χ2 = ½ max_{ij} (e_i − e_j)ᵀ Λ⁺ (e_i − e_j)

    Rates (n, n) are symmetric, >= 0, n >= 2: exchanges with weight 1/2 between i and j per unit of time. Of an overlay and per round: twice
    the mean of W over a period. The diagonal is ignored. Raises ValueError if the pairs that exchange do not connect all.

    Source: Nabli, Belilovsky and Oyallon 2023 (arXiv:2306.08289).
    """
    between = rates - np.diag(np.diag(rates))
    laplacian = np.diag(between.sum(axis=1)) - between
    slowest = float(np.linalg.eigvalsh(laplacian)[1])
    if slowest <= EXACT * float(between.max()):
        raise ValueError("the pairs do not connect all members")
    inverse = np.linalg.pinv(laplacian, hermitian=True)
    diagonal = np.diag(inverse)
    resistance = np.add.outer(diagonal, diagonal) - 2.0 * inverse
    chi1 = 1.0 / slowest
    return chi1, min(chi1, 0.5 * float(resistance[between > 0.0].max()))
