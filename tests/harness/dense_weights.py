"""Mixing matrices of a graph as dense arrays: a second implementation of the weight rules of `starling.gossip.overlay.weights`.

Shapes: n members; adjacency (n, n) bool, whose diagonal is ignored; W (n, n) float64, rows sum to 1.
"""

import numpy as np


def lazy(W):
    """Return (I + W)/2, without negative eigenvalues if W is symmetric."""
    return (np.eye(len(W)) + W) / 2.0


def metropolis_hastings(adjacency):
    """Return W_ij = 1/(1 + max(deg i, deg j)) on edges of a symmetric graph: symmetric and doubly stochastic."""
    edges = adjacency & ~np.eye(len(adjacency), dtype=bool)
    degrees = edges.sum(axis=1)
    return _with_rest(np.where(edges, 1.0 / (1.0 + np.maximum.outer(degrees, degrees)), 0.0))


def max_degree(adjacency):
    """Return W_ij = 1/(1 + largest degree) on edges of a symmetric graph: symmetric and doubly stochastic."""
    edges = adjacency & ~np.eye(len(adjacency), dtype=bool)
    return _with_rest(edges / (1.0 + edges.sum(axis=1).max()))


def uniform(adjacency):
    """Return W_ij = 1/(1 + deg i) on the edges of row i: row-stochastic, for models that are pulled."""
    edges = adjacency & ~np.eye(len(adjacency), dtype=bool)
    return _with_rest(edges / (1.0 + edges.sum(axis=1, keepdims=True)))


def _with_rest(W):
    W[np.diag_indices(len(W))] = 1.0 - W.sum(axis=1)
    return W
