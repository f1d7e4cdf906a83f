"""Mixing matrices as dense arrays: for tests, studies and the simulator, never for a running node.

Shapes: n members; W (n, n) float64, W[i, j] is the weight i gives to what it receives from j; J = 11ᵀ/n.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from starling.gossip.overlay.api import Overlay

Matrix = NDArray[np.float64]


def matrix(overlay: Overlay, n: int, round: int) -> Matrix:
    """W (n, n) of one round; the diagonal is what the row leaves.

    Raises:
        ValueError: the overlay's kind is undefined for n.
    """
    W = np.zeros((n, n))
    for i in range(n):
        for j, weight in overlay.row(i, n, round).items():
            W[i, j] = weight
    return _with_rest(W)


def symmetrised(W: Matrix) -> Matrix:
    """(W + Wᵀ)/2: doubly stochastic if W is, and usable by pairwise exchanges."""
    return (W + W.T) / 2.0


def lazy(W: Matrix) -> Matrix:
    """(I + W)/2: without negative eigenvalues if W is symmetric."""
    return (np.eye(len(W)) + W) / 2.0


def metropolis_hastings(adjacency: NDArray[np.bool_]) -> Matrix:
    """W_ij = 1/(1 + max(deg i, deg j)) on edges, the rest on the diagonal: symmetric and doubly stochastic.

    Args:
        adjacency: (n, n) symmetric; its diagonal is ignored.
    """
    edges = adjacency & ~np.eye(len(adjacency), dtype=bool)
    degrees = edges.sum(axis=1)
    return _with_rest(np.where(edges, 1.0 / (1.0 + np.maximum.outer(degrees, degrees)), 0.0))


def max_degree(adjacency: NDArray[np.bool_]) -> Matrix:
    """W_ij = 1/(1 + largest degree) on edges, the rest on the diagonal: symmetric and doubly stochastic.

    Args:
        adjacency: (n, n) symmetric; its diagonal is ignored.
    """
    edges = adjacency & ~np.eye(len(adjacency), dtype=bool)
    return _with_rest(edges / (1.0 + edges.sum(axis=1).max()))


def uniform(adjacency: NDArray[np.bool_]) -> Matrix:
    """W_ij = 1/(1 + deg i) on the row's edges and on the diagonal: row-stochastic, for models that are pulled.

    Who pushes gives every listener and itself an equal share, which is column-stochastic: `uniform(hears.T).T`.

    Args:
        adjacency: (n, n), [i, j] if i hears j; its diagonal is ignored.
    """
    edges = adjacency & ~np.eye(len(adjacency), dtype=bool)
    return _with_rest(edges / (1.0 + edges.sum(axis=1, keepdims=True)))


def _with_rest(W: Matrix) -> Matrix:
    """W with a diagonal that makes rows sum to 1; changes W."""
    W[np.diag_indices(len(W))] = 1.0 - W.sum(axis=1)
    return W


def residual(W: Matrix) -> float:
    """‖W − J‖₂: what one application of a doubly stochastic W leaves of any disagreement, at most."""
    return float(np.linalg.norm(W - 1.0 / len(W), ord=2))


def spectral_gap(W: Matrix) -> float:
    """1 − ‖W − J‖₂; for symmetric W 1 − max(|λ₂|, |λ_n|)."""
    return 1.0 - residual(W)
