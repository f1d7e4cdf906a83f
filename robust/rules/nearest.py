"""Rules that listen to those near to us.

Shapes: R rows, k peers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from starling.gossip.api import Combined
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.api import Context, bad, enough, nothing
from starling.robust.rules.distances import nearest, norms, positive
from starling.robust.rules.stack import Stack


@dataclass(frozen=True, slots=True)
class Nna:
    """Nearest neighbor averaging: the mean of our own vector and the k − b nearest to it.

    An absent peer's vector is our own, hence among the nearest: b of those present are left out, however few they are.

    Source: Farhadkhani et al. 2023, MoNNA (arXiv:2209.10931).

    Args:
        b: >= 0.
    """

    b: int

    def __post_init__(self) -> None:
        bad("nna", self.b)

    def tolerates(self, k: int) -> int:
        """b, of k >= 2b + 1."""
        return self.b if k > 2 * self.b else 0

    def start(self, own: Tensor) -> Tensor:
        """Nothing."""
        return nothing(own)

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), nothing, and who is not among the nearest."""
        enough("nna", self.b, stack.count, self.b + 2)
        kept = stack.count - 1 - self.b
        chosen = nearest(stack.squares(), kept).double()
        weights = torch.cat([torch.ones_like(chosen[:, :1]), chosen], dim=1) / (kept + 1)
        return stack.combination(weights), context.kept, chosen == 0


@dataclass(frozen=True, slots=True)
class Balance:
    """Our own vector with weight `share`, and with the rest the mean of those within γ·exp(−decay·t)·‖x‖ of it; alone if there are none.

    An absent peer's vector is our own, hence accepted. It remembers t, the rounds so far. The threshold is relative to the norm of our
    vector: a model near 0 accepts nobody, a large pretrained one everybody.

    Source: Fang et al. 2024, BALANCE (arXiv:2406.10416), with γ = 0.3, share 0.5 and a decay of 1/(rounds of the run).

    Args:
        gamma: γ, > 0.
        share: weight of our own vector, their α, in [0, 1].
        decay: per round, >= 0.
    """

    gamma: float = 0.3
    share: float = 0.5
    decay: float = 0.0

    def __post_init__(self) -> None:
        positive("balance: gamma", self.gamma)
        if not 0.0 <= self.share <= 1.0:
            raise ValueError(f"balance: share must be in [0, 1], got {self.share}")
        if not 0.0 <= self.decay < math.inf:
            raise ValueError(f"balance: decay must be finite and >= 0, got {self.decay}")

    def tolerates(self, k: int) -> int:
        """Any number: those accepted are within the threshold."""
        return k

    def start(self, own: Tensor) -> Tensor:
        """Round 0."""
        return own.new_zeros((own.shape[0], 1))

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), the number of rounds, and who is too far away."""
        limit = self.gamma * torch.exp(-self.decay * context.kept.double()) * norms(context.own)
        accepted = (stack.squares().sqrt() <= limit).double()
        others = (1 - self.share) * accepted / accepted.sum(dim=1, keepdim=True).clamp_min(1)
        weights = torch.cat([1 - others.sum(dim=1, keepdim=True), others], dim=1)
        return stack.combination(weights), context.kept + 1, accepted == 0
