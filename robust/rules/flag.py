"""The Flag Aggregator: what lies in the subspace that most updates share.

Shapes: R rows, m vectors, D numbers each.
"""

from __future__ import annotations

from dataclasses import dataclass

from starling.gossip.api import Combined
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.api import Context, nothing
from starling.robust.rules.stack import Stack

EPSILON = 1e-4
"""Keeps weights finite where the subspace explains a vector wholly. The authors take 1e-7, which is what the products here are good to."""
_TINY = 1e-150


@dataclass(frozen=True, slots=True)
class Flag:
    """x before the local steps + the mean of the updates' directions, projected on a robust subspace, at the median of their lengths.

    Updates u_j are the m vectors minus ours before the local steps, scaled to length 1. The subspace has ⌈(m + 1)/2⌉ dimensions and
    least Σ √(1 − v_j), with v_j the share of u_j that it explains, by reweighting: each step takes the leading directions of the u_j
    weighted by (1 − v_j + ε)^(−1/2). Everything runs on the Gram matrix. The median length is the lower of the middle two.

    Source: Almansoori et al. 2023, "Flag Aggregator" (arXiv:2302.05865), without their optional term for pairs (their λ = 0).

    Args:
        iterations: of reweighting, >= 1.
    """

    iterations: int = 5

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"flag: iterations must be >= 1, got {self.iterations}")

    def tolerates(self, k: int) -> int:
        """Fewer than half of the m vectors, where honest updates share a subspace."""
        return k // 2

    def start(self, own: Tensor) -> Tensor:
        """Nothing."""
        return nothing(own)

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), and nothing."""
        raw = stack.gram(context.before)
        origin, among = raw[:, :-1, -1:], raw[:, :-1, :-1]
        gram = among - origin - origin.transpose(1, 2) + raw[:, -1:, -1:]
        lengths = gram.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
        safe = lengths.clamp_min(_TINY)
        gram = gram / (safe.unsqueeze(2) * safe.unsqueeze(1))
        mean = torch.cat([self._projected_mean(row[None].clone()) for row in gram])  # as if alone, to the bit
        update = mean * lengths.median(dim=1, keepdim=True).values / safe
        update = torch.where(lengths > _TINY, update, 0.0)  # who did not move at all has no direction
        weights = torch.cat([update, 1 - update.sum(dim=1, keepdim=True)], dim=1)
        return stack.combination(weights, context.before), context.kept, None

    def _projected_mean(self, gram: Tensor) -> Tensor:
        """(R, m) coefficients of the mean projection on the u_j, from their products (R, m, m)."""
        count = gram.shape[1]
        size = count // 2 + 1  # ⌈(m + 1)/2⌉
        weights = torch.ones_like(gram[:, 0])
        roots, values, directions, inside = weights, weights, gram, gram
        for _ in range(self.iterations):
            roots = weights.sqrt()
            found, vectors = torch.linalg.eigh(gram * roots.unsqueeze(2) * roots.unsqueeze(1))
            values, directions = found[:, -size:], vectors[:, :, -size:]
            inverse = torch.where(values > 1e-9, values.clamp_min(1e-9).rsqrt(), 0.0)  # no direction at all
            directions = directions * inverse.unsqueeze(1) * roots.unsqueeze(2)
            inside = directions.transpose(1, 2) @ gram
            weights = (1 - inside.square().sum(dim=1).clamp(0, 1) + EPSILON).rsqrt()
            weights = weights / weights.mean(dim=1, keepdim=True)
        return (directions @ inside).mean(dim=2)
