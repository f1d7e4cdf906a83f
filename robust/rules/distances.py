"""Distances and clipping factors from Gram matrices, for R rows at once.

Short sums of products are no matrix products, so that the bits of a row do not depend on the number of rows.

Shapes: R rows, m vectors.
"""

from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.stack import CHUNK

HALF = 0.5  # a peer whose difference is shortened below this share is reported as clipped


def between(gram: Tensor) -> Tensor:
    """Return (R, m, m), squared distances from a Gram matrix, >= 0, and 0 on the diagonal."""
    squares = gram.diagonal(dim1=1, dim2=2)
    distances = (squares.unsqueeze(2) + squares.unsqueeze(1) - 2 * gram).clamp_min(0)
    return distances.masked_fill(torch.eye(gram.shape[1], dtype=torch.bool, device=gram.device), 0.0)


def to_point(gram: Tensor, weights: Tensor) -> Tensor:
    """Return (R, m), distances from every vector to their combination with weights (R, m) that sum to 1."""
    along = (gram * weights.unsqueeze(1)).sum(dim=2)
    squares = gram.diagonal(dim1=1, dim2=2) - 2 * along + (weights * along).sum(dim=1, keepdim=True)
    return squares.clamp_min(0).sqrt()


def nearest(distances: Tensor, count: int) -> Tensor:
    """Return (…, m) bool: the `count` smallest of (…, m); of equal ones those of lower index."""
    order = distances.sort(dim=-1, stable=True).indices[..., :count]
    chosen = torch.zeros_like(distances, dtype=torch.bool)
    return chosen.scatter_(-1, order, True)


def shortened(distances: Tensor, tau: Tensor | float) -> Tensor:
    """min(1, tau/distance) for (R, m) distances, the factor of clipping; 1 for a distance of 0."""
    limit = torch.as_tensor(tau, dtype=torch.float64, device=distances.device)
    return torch.where(distances > limit, limit / distances, 1.0)


def norms(vectors: Tensor, origin: Tensor | None = None) -> Tensor:
    """Return (R, 1) float64 Euclidean norms of (R, D), or of the differences to an origin (R, D)."""
    total = torch.zeros((vectors.shape[0], 1), dtype=torch.float64, device=vectors.device)
    for first in range(0, vectors.shape[1], CHUNK):
        part = vectors[:, first : first + CHUNK]
        if origin is not None:
            part = part - origin[:, first : first + CHUNK]
        total += torch.linalg.vector_norm(part, dim=1, keepdim=True).double().square()
    return total.sqrt()
