"""Rules that start from our own vector and move at most so far toward each peer: x + 1/(k + 1) Σ clip(x_j − x, tau).

An absent peer adds nothing and still counts in k + 1. They differ in tau. A threshold made of what peers say can be driven up by them;
one made of our own steps, or of a low order statistic, cannot.

Shapes: R rows, k peers.
"""

from __future__ import annotations

from dataclasses import dataclass

from starling.gossip.api import Combined
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.api import Context, bad, nothing
from starling.robust.rules.distances import HALF, norms, positive, shortened
from starling.robust.rules.stack import Stack

KAPPA = 3.0
_MEMORY = 0.9  # of the running mean of step lengths


@dataclass(frozen=True, slots=True)
class Sac:
    """Self-centered clipping, anchored to our own step: tau = κ·s with s <- 0.9 s + 0.1 ‖x − x before the local steps‖.

    The one rule for one peer at a time: whatever a peer sends moves us by no more than κ of our own steps, divided by k + 1. s is what
    it remembers; 0 is not known yet, and then the first step counts whole.

    Source: ours; clipping about one's own model is that of He, Karimireddy and Jaggi 2022, ClippedGossip (arXiv:2202.01545).

    Args:
        kappa: κ, > 0. 3 to 4 works, 2 costs accuracy, 6 is no defense.
    """

    kappa: float = KAPPA

    def __post_init__(self) -> None:
        positive("sac: kappa", self.kappa)

    def tolerates(self, k: int) -> int:
        """Any number: each is held to the threshold."""
        return k

    def start(self, own: Tensor) -> Tensor:
        """No step yet."""
        return own.new_zeros((own.shape[0], 1))

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), the running mean of our step lengths, and who was clipped to less than half."""
        step = running_step(context)
        return clipped(stack, stack.squares().sqrt(), self.kappa * step, step.to(context.kept.dtype))


@dataclass(frozen=True, slots=True)
class CsPlus:
    """Clipping at the (k − 2b)-th smallest of the distances; nobody is listened to if k <= 2b, nobody is clipped if b = 0.

    Even if b of those nearer are bad and b of those farther honest, that distance is not greater than an honest one. Where only k' < k
    peers are there: b' = min(b, ⌊(k' − 1)/2⌋) and the (k' − 2b')-th smallest of their distances; where that makes b' = 0 of b > 0, which
    would clip nobody, the threshold is that of `Sac` with κ = 3.

    Source: Gaucher, Dieuleveut and Hendrikx 2025, CG+ (arXiv:2410.10418). What is done about absent peers is ours.

    Args:
        b: >= 0.
    """

    b: int

    def __post_init__(self) -> None:
        bad("cs_plus", self.b)

    def tolerates(self, k: int) -> int:
        """b, of k >= 2b + 1."""
        return self.b if k > 2 * self.b else 0

    def start(self, own: Tensor) -> Tensor:
        """No step yet."""
        return own.new_zeros((own.shape[0], 1))

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), the running mean of our step lengths, and who was clipped to less than half."""
        distances, step = stack.squares().sqrt(), running_step(context)
        tau = outlived(distances, stack.heard, self.b, step)
        return clipped(stack, distances, tau, step.to(context.kept.dtype))


@dataclass(frozen=True, slots=True)
class ClippedGossip:
    """Clipping at tau² = (1/b) Σ of the k − b smallest squared distances, its practical threshold; nobody is clipped if b = 0.

    An absent peer's distance is 0. Far vectors drive the threshold up, which is its weakness.

    Source: He, Karimireddy and Jaggi 2022 (arXiv:2202.01545); the threshold as in the code of Gaucher et al. (arXiv:2410.10418).

    Args:
        b: >= 0.
    """

    b: int

    def __post_init__(self) -> None:
        bad("clipped_gossip", self.b)

    def tolerates(self, k: int) -> int:
        """b, of k >= 2b + 1."""
        return self.b if k > 2 * self.b else 0

    def start(self, own: Tensor) -> Tensor:
        """Nothing."""
        return nothing(own)

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), nothing, and who was clipped to less than half."""
        squares = stack.squares()
        tau = torch.full_like(squares[:, :1], torch.inf)
        if self.b:
            kept = max(0, stack.count - 1 - self.b)
            tau = (squares.sort(dim=1).values[:, :kept].sum(dim=1, keepdim=True) / self.b).sqrt()
        return clipped(stack, squares.sqrt(), tau, context.kept)


@dataclass(frozen=True, slots=True)
class NormBound:
    """Clipping at a threshold that somebody chose.

    Source: Sun et al. 2019, "Can you really backdoor federated learning?" (arXiv:1911.07963), here about our own vector.

    Args:
        tau: > 0.
    """

    tau: float

    def __post_init__(self) -> None:
        positive("norm_bound: tau", self.tau)

    def tolerates(self, k: int) -> int:
        """Any number: each is held to the threshold."""
        return k

    def start(self, own: Tensor) -> Tensor:
        """Nothing."""
        return nothing(own)

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), nothing, and who was clipped to less than half."""
        return clipped(stack, stack.squares().sqrt(), self.tau, context.kept)


def clipped(stack: Stack, distances: Tensor, tau: Tensor | float, kept: Tensor) -> Combined:
    """(R, D) our own vector moved by 1/(k + 1) of every difference, shortened to tau; and who was shortened to less than half.

    Args:
        stack: the vectors.
        distances: (R, k) float64.
        tau: (R, 1), or one for all.
        kept: (R, s) what is remembered.
    """
    factors = shortened(distances, tau)
    others = factors / stack.count
    own = 1 - others.sum(dim=1, keepdim=True)
    return stack.combination(torch.cat([own, others], dim=1)), kept, factors < HALF


def outlived(distances: Tensor, heard: Tensor, b: int, step: Tensor) -> Tensor:
    """(R, 1) float64: the threshold of `CsPlus`, which is not greater than some honest one's distance with b bad ones among those heard.

    Args:
        distances: (R, k) float64.
        heard: (R, k) bool, who is there.
        b: bad ones among k; fewer are allowed for where not all are there.
        step: (R, 1) running mean of the lengths of our own steps.
    """
    there = heard.sum(dim=1, keepdim=True)
    if b and distances.shape[1] <= 2 * b:
        return torch.zeros_like(step)
    allowed = expected(there, b)
    ordered = distances.masked_fill(~heard, torch.inf).sort(dim=1).values
    tau = ordered.gather(1, (there - 2 * allowed - 1).clamp_min(0))
    return torch.where(allowed > 0, tau, KAPPA * step) if b else tau


def expected(there: Tensor, b: int) -> Tensor:
    """Bad ones to expect of so many who are there, int64 of any shape: b of k >= 2b + 1, and always a minority."""
    return ((there - 1) // 2).clamp(0, b)


def running_step(context: Context) -> Tensor:
    """(R, 1) float64: the running mean of the lengths of our own steps, this round's included."""
    length, kept = norms(context.own, context.before), context.kept.double()
    return torch.where(kept > 0, _MEMORY * kept + (1 - _MEMORY) * length, length)
