"""DADAO: two Poisson processes, of gradients and of pairwise meetings, both accelerated. For smooth strongly convex sums.

Shapes: n nodes, d parameters, E edges.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
_GRID_S, _GRID = 0.02, 3000  # units of time between two tabulated matrix exponentials, and how many there are


@dataclass(frozen=True, slots=True)
class Point:
    """State after an event."""

    gradients: float  # gradients that a node has computed
    messages: float  # vectors that a node sent, so far
    models: Numbers  # (n, d), each as it was after its node's last event


def resistances(n: int, edges: Sequence[tuple[int, int]], rate: float = 1.0) -> tuple[float, float]:
    """Return χ1 and χ2 of a connected graph whose edges meet at this rate; both are proportional to 1/rate.

    1 over the second least eigenvalue of the Laplacian, and half the largest effective resistance of an edge.
    """
    laplacian = np.zeros((n, n))
    for i, j in edges:
        laplacian[[i, j], [i, j]] += rate
        laplacian[[i, j], [j, i]] -= rate
    inverse = np.linalg.pinv(laplacian)
    between = max(inverse[i, i] + inverse[j, j] - 2.0 * inverse[i, j] for i, j in edges)
    return float(1.0 / np.linalg.eigvalsh(laplacian)[1]), float(0.5 * between)


def dadao(
    gradient: Callable[[int, Numbers], Numbers],
    x: Numbers,
    edges: Sequence[tuple[int, int]],
    *,
    smooth: float,
    convex: float,
    seed: int,
    rate: float | None = None,
) -> Iterator[Point]:
    """Run without end, an event at a time: gradients at rate 1 a node, meetings at `rate` an edge.

    Six vectors a node follow a linear flow between its events, (x, x̃, y, ỹ, z, z̃)' = M (…), s = √(ν/L), ν = μ/2:

        gradient   g = ∇f_i(x) − ν x − ỹ;   x −= g/4L,   x̃ −= g/(4√(Lν)),   ỹ += (1 + s/4) g
        meeting    p = (y_i + z_i) − (y_j + z_j);   z_i −= p/2,   z̃_i −= (2χ1/s) p;   with + at j

    Source: Nabli and Oyallon 2022 (arXiv:2208.00779).

    Args:
        gradient: (node, model (d,)) -> (d,).
        x: (n, d) where models begin.
        edges: of a connected graph, pairs of nodes.
        smooth: L, of every node's function.
        convex: mu, in (0, L].
        seed: of the clocks.
        rate: meetings of an edge in the time of a gradient; left out, the least that the theory allows.

    Raises ValueError: constants that cannot be, or χ1 χ2 > 1/2 at this rate, with the least one.
    """
    if not 0.0 < convex <= smooth:
        raise ValueError(f"convex must be in (0, smooth = {smooth}], got {convex}")
    n, (one, two) = len(x), resistances(len(x), edges)
    least = float(np.sqrt(2.0 * one * two))
    rate = least if rate is None else rate
    if rate < least * (1.0 - 1e-9):
        raise ValueError(f"rate must be >= {least:.4g}, for chi1 chi2 <= 1/2, got {rate:g}")
    return _events(gradient, x, edges, smooth, convex / 2.0, one / rate, rate, np.random.default_rng(seed), n)


def _events(
    gradient: Callable[[int, Numbers], Numbers],
    x: Numbers,
    edges: Sequence[tuple[int, int]],
    smooth: float,
    nu: float,
    chi: float,
    rate: float,
    chance: np.random.Generator,
    n: int,
) -> Iterator[Point]:
    s = float(np.sqrt(nu / smooth))
    flow, state, last = _flow(s, nu), np.zeros((6, *x.shape)), np.zeros(n)
    state[0] = state[1] = x
    total, now, gradients, messages = n + rate * len(edges), 0.0, 0, 0

    def moved(node: int) -> Numbers:
        value = flow(now - last[node]) @ state[:, node]
        last[node] = now
        return value

    while True:
        now += chance.exponential(1.0 / total)
        if chance.random() < n / total:
            i = int(chance.integers(n))
            own = moved(i)
            step = gradient(i, own[0]) - nu * own[0] - own[3]
            own[0] -= step / (4.0 * smooth)
            own[1] -= step / (4.0 * np.sqrt(smooth * nu))
            own[3] += (1.0 + s / 4.0) * step
            state[:, i] = own
            gradients += 1
        else:
            i, j = edges[int(chance.integers(len(edges)))]
            first, second = moved(i), moved(j)
            apart = first[2] + first[4] - second[2] - second[4]
            for sign, own in ((1.0, first), (-1.0, second)):
                own[4] -= sign * 0.5 * apart
                own[5] -= sign * 2.0 * chi / s * apart
            state[:, i], state[:, j] = first, second
            messages += 2
        yield Point(gradients / n, messages / n, state[0])


def _flow(s: float, nu: float) -> Callable[[float], Numbers]:
    """Return a function of t: exp(M t) (6, 6). M has a double eigenvalue 0 with one eigenvector, so by a table and three Taylor terms."""
    M = np.zeros((6, 6))
    M[0, :2], M[1, :2] = (-s / 8, s / 8), (s / 8, -s / 8)
    M[2, 2:4] = -s / 4, s / 4
    M[3, [1, 2, 4]] = -0.5 / s * np.array([nu, 1.0, 1.0])
    M[4, 4:], M[5, 4:] = (-s / 4, s / 4), (s / 8, -s / 8)
    steps = torch.from_numpy(M) * (_GRID_S * torch.arange(_GRID, dtype=torch.float64))[:, None, None]
    table, unit = torch.linalg.matrix_exp(steps).numpy(), np.eye(6)

    def exponential(t: float) -> Numbers:
        at = min(int(t / _GRID_S), _GRID - 1)
        u = t - at * _GRID_S
        if u > 2.0 * _GRID_S:
            far: Numbers = torch.linalg.matrix_exp(torch.from_numpy(M * t)).numpy()
            return far
        near: Numbers = table[at] @ (unit + u * (M + u / 2.0 * (M @ M + u / 3.0 * (M @ M @ M))))
        return near

    return exponential
