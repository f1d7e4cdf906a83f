"""Rules that clip differences to our own vector: x + 1/(k + 1) Σ clip(x_j − x, tau), or select among the clipped vectors.

An absent peer adds nothing and still counts in k + 1. The rules differ in tau. Peers can raise a threshold computed from their vectors;
they cannot raise one computed from our own steps, or a low order statistic of the distances.

Shapes: R rows, k peers of which k' are present, m' = k' + 1 vectors with our own, D numbers each.
"""

from starling.gossip.api import Combined
from starling.gossip.bounds import Positive, parameters
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.preaggregate import neighborly
from starling.robust.rules.api import Context, OneNumber, Tolerant
from starling.robust.rules.coordinate import TrimmedMean
from starling.robust.rules.distances import HALF, between, norms, shortened
from starling.robust.rules.stack import Stack

KAPPA = 3.0
_DECAY = 0.9  # decay of the running mean of step lengths


@parameters
class Sac(OneNumber):
    """Self-centered clipping at a multiple of our own step: tau = κ·s with s <- 0.9 s + 0.1 ‖x − x before the local steps‖.

    The rule for one peer at a time: a peer moves us by at most κ of our own steps, divided by k + 1. The state is s; 0 before the first
    round, whose step counts fully.

    Source: this project; clipping about the own model is that of He, Karimireddy and Jaggi 2022, ClippedGossip (arXiv:2202.01545).

    Args:
        kappa: κ, > 0. 3 to 4 works, 2 costs accuracy, 6 is no defense.
    """

    kappa: Positive = KAPPA

    def reduce(self, stack: Stack, context: Context) -> Combined:
        step = _running_step(context)
        return _clipped(stack, stack.squares().sqrt(), self.kappa * step, step.to(context.state.dtype))


@parameters
class CsPlus(OneNumber, Tolerant):
    """Clipping at the (k − 2f)-th smallest distance; all peers are ignored if k <= 2f, and none is clipped if f = 0.

    That distance is at most an honest one, even if the f nearer vectors are Byzantine and f of the farther ones honest. With k' < k
    present peers: f' = min(f, ⌊(k' − 1)/2⌋) and the (k' − 2f')-th smallest of their distances; where f' = 0 < f, which would clip none,
    the threshold is that of `Sac` with κ = 3.

    Source: Gaucher, Dieuleveut and Hendrikx 2025, CG+ (arXiv:2410.10418). Deviation: absent peers.
    """

    def reduce(self, stack: Stack, context: Context) -> Combined:
        distances, step = stack.squares().sqrt(), _running_step(context)
        tau = _cs_threshold(distances, stack.counted, self.f, step)
        return _clipped(stack, distances, tau, step.to(context.state.dtype))


@parameters
class CsNnm(OneNumber, Tolerant):
    """Clipping at the threshold of `CsPlus`, then nearest neighbor mixing and the trimmed mean, each with f' = min(f, ⌊(k' − 1)/2⌋).

    Clipping alone bounds the effect of Byzantine vectors in one round, and admits it in every round; selection alone excludes them, and
    fails in the first round with more than f. Together they exclude them, and a round with more than f moves us by a bounded step: less
    than √m' thresholds, for any number of Byzantine peers. All clipped vectors count as equally near to us. Absent peers are left out.

    Source: this project. Clipping before selection is Allouah et al. 2024, ARC (arXiv:2405.14778), there about zero; the parts are
    arXiv:2410.10418, 2302.01772 and 1803.01498.
    """

    def reduce(self, stack: Stack, context: Context) -> Combined:
        counted, step = stack.counted, _running_step(context)
        distances = stack.squares().sqrt()
        factors = shortened(distances, _cs_threshold(distances, counted, self.f, step))
        combined = stack.own.clone()
        there = counted.sum(dim=1)
        for count in sorted(set(there.tolist())):  # a node has one value; rows of a simulation may miss different peers
            rows = (there == count).nonzero().flatten()
            f = int(_expected(there[rows[0]], self.f))
            places = counted[rows].nonzero()[:, 1].view(len(rows), count)
            clipped = stack.only(rows).mixed(_clipping(factors[rows], places))
            apart = between(clipped.gram())
            apart[:, 0, 1:] = distances[rows].gather(1, places)  # distances before clipping; afterwards they are equal
            mixed = clipped.mixed(neighborly(apart, f))
            combined[rows], _, _ = TrimmedMean(f).reduce(mixed, context)
        return combined, step.to(context.state.dtype), factors < HALF


@parameters
class ClippedGossip(Tolerant):
    """Clipping at tau² = (1/f) Σ of the k − f smallest squared distances, its practical threshold; none is clipped if f = 0.

    An absent peer has distance 0. Its weakness: far vectors raise the threshold.

    Source: He, Karimireddy and Jaggi 2022 (arXiv:2202.01545); the threshold as in the code of Gaucher et al. (arXiv:2410.10418).
    """

    def reduce(self, stack: Stack, context: Context) -> Combined:
        squares = stack.squares()
        tau = torch.full_like(squares[:, :1], torch.inf)
        if self.f:
            nearest_count = max(0, stack.count - 1 - self.f)
            tau = (squares.sort(dim=1).values[:, :nearest_count].sum(dim=1, keepdim=True) / self.f).sqrt()
        return _clipped(stack, squares.sqrt(), tau, context.state)


@parameters
class NormBound:
    """Clipping at a configured threshold.

    Source: Sun et al. 2019, "Can you really backdoor federated learning?" (arXiv:1911.07963), here about our own vector.

    Args:
        tau: > 0.
    """

    tau: Positive = 1.0

    def reduce(self, stack: Stack, context: Context) -> Combined:
        return _clipped(stack, stack.squares().sqrt(), self.tau, context.state)


def _clipped(stack: Stack, distances: Tensor, tau: Tensor | float, state: Tensor) -> Combined:
    """Return our own vector moved by 1/(k + 1) of every difference, clipped to tau, (R, 1) or one for all; and the peers clipped
    to less than
    half.
    """
    factors = shortened(distances, tau)
    others = factors / stack.count
    own = 1 - others.sum(dim=1, keepdim=True)
    return stack.combination(torch.cat([own, others], dim=1)), state, factors < HALF


def _cs_threshold(distances: Tensor, counted: Tensor, f: int, step: Tensor) -> Tensor:
    """Return (R, 1) float64, threshold of `CsPlus`, from distances (R, k) float64 of the peers `counted` (R, k), f of them Byzantine.

    `step` (R, 1) is the running mean of the lengths of our own steps.
    """
    there = counted.sum(dim=1, keepdim=True)
    if f and distances.shape[1] <= 2 * f:
        return torch.zeros_like(step)
    allowed = _expected(there, f)
    ordered = distances.masked_fill(~counted, torch.inf).sort(dim=1).values
    tau = ordered.gather(1, (there - 2 * allowed - 1).clamp_min(0))
    return torch.where(allowed > 0, tau, KAPPA * step) if f else tau


def _expected(there: Tensor, f: int) -> Tensor:
    """F' of k' present peers, int64 of any shape: f, and always a minority."""
    return ((there - 1) // 2).clamp(0, f)


def _running_step(context: Context) -> Tensor:
    """Return (R, 1) float64, running mean of the lengths of our own steps, this round's included."""
    length, mean = norms(context.own, context.before), context.state.double()
    return torch.where(mean > 0, _DECAY * mean + (1 - _DECAY) * length, length)


def _clipping(factors: Tensor, places: Tensor) -> Tensor:
    """Return (R, m', k + 1), mixing of all vectors into the clipped ones of present peers, of indices `places` (R, k'); our own stays
    first.

    `factors` (R, k) is what clipping leaves of each difference.
    """
    rows, count = places.shape
    shares = factors.gather(1, places)
    mixing = factors.new_zeros((rows, count + 1, factors.shape[1] + 1))
    mixing[:, 0, 0] = 1.0
    mixing[:, 1:, 0] = 1 - shares
    mixing[:, 1:].scatter_(2, places[:, :, None] + 1, shares[:, :, None])
    return mixing
