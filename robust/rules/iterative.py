"""Rules that iterate on the Gram matrix: centered clipping, the geometric median, the Flag Aggregator.

They pass over the vectors twice, for any number of iterations.

Shapes: R rows, k peers, m = k + 1 vectors, D numbers each.
"""

from starling.gossip.api import Combined
from starling.gossip.bounds import Positive, Steps, parameters
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.api import Context
from starling.robust.rules.distances import HALF, shortened, to_point
from starling.robust.rules.stack import Stack

EPSILON = 1e-4
"""Keeps weights of `Flag` finite where the subspace explains a vector fully. The authors take 1e-7, the precision of the products here."""
_TINY = 1e-150
_COINCIDENT = 1e-140  # smallest spread: for equal vectors any weights are right, but not a division by 0


@parameters
class CenteredClip:
    """v <- v + (1/m) Σ clip(x_i − v, tau) over all m vectors, from the v of the previous round, at first our own vector.

    The state is v. A Byzantine vector moves v by at most iterations·tau/m per round.

    Source: Karimireddy, He and Jaggi 2021, "Learning from history" (arXiv:2012.10333).

    Args:
        tau: > 0.
        iterations: >= 1.
    """

    tau: Positive = 1.0
    iterations: Steps = 1

    def start(self, own: Tensor) -> Tensor:
        return own.clone()

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """Combine; peers clipped in the last iteration are reported."""
        gram = stack.gram(context.state)
        weights = torch.zeros(gram.shape[:2], dtype=torch.float64, device=gram.device)
        weights[:, -1] = 1.0
        for _ in range(self.iterations):
            factors = shortened(to_point(gram, weights)[:, :-1], self.tau)
            moves = factors / stack.count
            weights = weights * (1 - moves.sum(dim=1, keepdim=True))
            weights[:, :-1] += moves
        center = stack.combination(weights, context.state)
        return center, center, factors[:, 1:] < HALF


@parameters
class GeometricMedian:
    """The point of least sum of distances to the m vectors, by the smoothed Weiszfeld iteration.

    z <- Σ x_i/s_i / Σ 1/s_i with s_i = max(ν, ‖x_i − z‖). The start is a mean in which vectors farther from our own than the median have
    proportionally less weight: a distant minority would slow the iteration from the plain mean, and one from our own vector, which is
    an x_i, would hardly leave it. ν is relative, as the result would be the mean of vectors that are all within ν of each other.

    Source: Pillutla, Kakade and Harchaoui 2019, RFA (arXiv:1912.13445).

    Args:
        nu: ν over the median distance from our own vector, > 0.
        iterations: steps, >= 1.
    """

    nu: Positive = 1e-6
    iterations: Steps = 64

    def reduce(self, stack: Stack, context: Context) -> Combined:
        gram = stack.gram()
        away = gram.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
        spread = away[:, 1:].median(dim=1, keepdim=True).values.clamp_min(_COINCIDENT)
        pulls = 1 / torch.maximum(away, spread)
        for _ in range(self.iterations):
            weights = pulls / pulls.sum(dim=1, keepdim=True)
            pulls = 1 / torch.maximum(to_point(gram, weights), self.nu * spread)
        weights = pulls / pulls.sum(dim=1, keepdim=True)
        return stack.combination(weights), context.state, None


@parameters
class Flag:
    """x before the local steps + the mean of the updates' directions, projected on a robust subspace, at the median of their lengths.

    Updates u_j are the m vectors minus ours before the local steps, scaled to length 1. The subspace has ⌈(m + 1)/2⌉ dimensions and
    least Σ √(1 − v_j), with v_j the share of u_j that it explains, by reweighting: each step takes the leading directions of the u_j
    weighted by (1 − v_j + ε)^(−1/2). The median length is the lower of the middle two.

    Source: Almansoori et al. 2023, "Flag Aggregator" (arXiv:2302.05865), without their optional term for pairs (their λ = 0).

    Args:
        iterations: of reweighting, >= 1.
    """

    iterations: Steps = 5

    def reduce(self, stack: Stack, context: Context) -> Combined:
        raw = stack.gram(context.before)
        origin, among = raw[:, :-1, -1:], raw[:, :-1, :-1]
        gram = among - origin - origin.transpose(1, 2) + raw[:, -1:, -1:]
        lengths = gram.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
        safe = lengths.clamp_min(_TINY)
        gram = gram / (safe.unsqueeze(2) * safe.unsqueeze(1))
        mean = torch.cat([self._projected_mean(row[None].clone()) for row in gram])  # row by row, for equal bits
        update = mean * lengths.median(dim=1, keepdim=True).values / safe
        update = torch.where(lengths > _TINY, update, 0.0)  # an update of length 0 has no direction
        weights = torch.cat([update, 1 - update.sum(dim=1, keepdim=True)], dim=1)
        return stack.combination(weights, context.before), context.state, None

    def _projected_mean(self, gram: Tensor) -> Tensor:
        """Return (R, m), coefficients of the mean projection on the u_j, from their products (R, m, m)."""
        count = gram.shape[1]
        size = count // 2 + 1  # ⌈(m + 1)/2⌉
        weights = torch.ones_like(gram[:, 0])
        roots, values, directions, inside = weights, weights, gram, gram
        for _ in range(self.iterations):
            roots = weights.sqrt()
            eigenvalues, vectors = torch.linalg.eigh(gram * roots.unsqueeze(2) * roots.unsqueeze(1))
            values, directions = eigenvalues[:, -size:], vectors[:, :, -size:]
            inverse = torch.where(values > 1e-9, values.clamp_min(1e-9).rsqrt(), 0.0)  # below: no direction
            directions = directions * inverse.unsqueeze(1) * roots.unsqueeze(2)
            inside = directions.transpose(1, 2) @ gram
            weights = (1 - inside.square().sum(dim=1).clamp(0, 1) + EPSILON).rsqrt()
            weights = weights / weights.mean(dim=1, keepdim=True)
        return (directions @ inside).mean(dim=2)
