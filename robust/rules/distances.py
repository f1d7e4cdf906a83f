"""What rules make of a Gram matrix, for R rows at once.

Sums of a few products are written as such instead of as matrix products, so that a row's bits do not depend on how many rows there are.

Shapes: R rows, m vectors.
"""

from __future__ import annotations

import math

from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.stack import CHUNK

HALF = 0.5
"""Whose difference is shortened below this was held back."""


def between(gram: Tensor) -> Tensor:
    """(R, m, m) squared distances from a Gram matrix, >= 0, and 0 on the diagonal."""
    squares = gram.diagonal(dim1=1, dim2=2)
    distances = (squares.unsqueeze(2) + squares.unsqueeze(1) - 2 * gram).clamp_min(0)
    return distances.masked_fill(torch.eye(gram.shape[1], dtype=torch.bool, device=gram.device), 0.0)


def to_point(gram: Tensor, weights: Tensor) -> Tensor:
    """(R, m) distances from every vector to the point that weights (R, m), which sum to 1, make of them."""
    along = (gram * weights.unsqueeze(1)).sum(dim=2)
    squares = gram.diagonal(dim1=1, dim2=2) - 2 * along + (weights * along).sum(dim=1, keepdim=True)
    return squares.clamp_min(0).sqrt()


def nearest(distances: Tensor, count: int) -> Tensor:
    """(…, m) bool: the `count` smallest of (…, m); of equal ones those of lower index."""
    order = distances.sort(dim=-1, stable=True).indices[..., :count]
    chosen = torch.zeros_like(distances, dtype=torch.bool)
    return chosen.scatter_(-1, order, True)


def shortened(distances: Tensor, tau: Tensor | float) -> Tensor:
    """min(1, tau/distance) for (R, m) distances: by how much clipping shortens. 1 for a distance of 0."""
    limit = torch.as_tensor(tau, dtype=torch.float64, device=distances.device)
    return torch.where(distances > limit, limit / distances, 1.0)


def norms(vectors: Tensor, origin: Tensor | None = None) -> Tensor:
    """(R, 1) float64 Euclidean norms of (R, D), or of the differences to an origin (R, D)."""
    total = torch.zeros((vectors.shape[0], 1), dtype=torch.float64, device=vectors.device)
    for first in range(0, vectors.shape[1], CHUNK):
        part = vectors[:, first : first + CHUNK]
        if origin is not None:
            part = part - origin[:, first : first + CHUNK]
        total += torch.linalg.vector_norm(part, dim=1, keepdim=True).double().square()
    return total.sqrt()


def positive(name: str, value: float) -> None:
    """Check a threshold.

    Raises:
        ValueError: it is not finite and > 0.
    """
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be finite and > 0, got {value}")
