"""FoolsGold as a combining rule: peers whose summed updates are similar to those of others lose weight.

Shapes: R rows, k peers, D numbers of a vector, s = min(D, BUCKETS) of a history, M seats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from starling.gossip.api import Combined
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.api import Context
from starling.robust.rules.distances import HALF
from starling.robust.rules.stack import Stack
from starling.robust.sketches import foolsgold
from starling.robust.sketches.histories import BUCKETS, MOST, moved, sketch


@dataclass(frozen=True, slots=True)
class FoolsGold:
    """(x + Σ α_j x_j)/(1 + Σ α_j), with α_j near 0 for peers whose summed updates point in the direction of another peer's.

    It stores MOST peers: of each the sum of its updates, received vector minus own vector before the local steps; above BUCKETS numbers, a
    sketch. All stored histories are compared, also those of peers absent this round. The own weight is 1 and the own updates are not
    compared. An absent peer counts as the own vector with weight 1. A peer without a seat, as MOST others have one, has weight 0.

    Source: Fung, Yoon and Beschastnikh 2018 (arXiv:1808.04866); that a node trusts itself, Werthenbach and Pouwelse 2023
    (arXiv:2306.15044). Deviation: seats.

    Args:
        seed: of the sketches; an attacker that knows it can make clones look slightly different.
    """

    seed: int = 0
    seats: ClassVar[int] = MOST

    def tolerates(self, k: int) -> int:
        """0: it defends against clones only."""
        return 0

    def start(self, own: Tensor) -> Tensor:
        """Empty histories."""
        return own.new_zeros((own.shape[0], MOST * min(own.shape[1], BUCKETS)))

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D) combined vectors, the updated histories, and (R, k) whose weight is below 1/2."""
        kept = context.kept.clone()
        histories = kept.view(len(kept), MOST, -1)
        alphas = torch.ones(stack.present.shape, dtype=torch.float64, device=kept.device)
        for row, present in enumerate(stack.present):
            peers = present.nonzero().flatten()
            seats = peers if context.seats is None else context.seats[row, peers]
            seated = (seats >= 0) & (seats < MOST)
            alphas[row, peers[~seated]] = 0.0
            peers, seats = peers[seated], seats[seated]
            steps = self._steps(stack.told[row, peers], context.before[row])
            histories[row, seats] += steps.to(kept.dtype)
            alphas[row, peers] = _weights(histories[row])[seats]
        others = alphas / (1.0 + alphas.sum(dim=1, keepdim=True))
        weights = torch.cat([1.0 - others.sum(dim=1, keepdim=True), others], dim=1)
        return stack.combination(weights), kept, alphas < HALF

    def _steps(self, told: Tensor, before: Tensor) -> Tensor:
        """(p, s) histories of one update of p peers."""
        if told.shape[-1] <= BUCKETS:
            return moved(told, before)
        return sketch(told, self.seed, origin=before)


def _weights(histories: Tensor) -> Tensor:
    """(M, s) histories -> (M,) float64 weights, 1 for an empty history."""
    weights = torch.ones(len(histories), dtype=torch.float64, device=histories.device)
    known = histories.any(dim=1).nonzero().flatten()
    weights[known] = foolsgold.weights(foolsgold.similarity(histories[known]))
    return weights
