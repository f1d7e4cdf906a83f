"""FoolsGold as a rule: whoever has moved as others have counts less, round after round.

Shapes: R rows, k peers, D numbers of a vector, s = min(D, BUCKETS) of a history, M seats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from starling.gossip.api import Combined
from starling.robust.rules.api import Context
from starling.robust.rules.distances import HALF
from starling.robust.rules.stack import Stack
from starling.robust.sketches import foolsgold
from starling.robust.sketches.histories import BUCKETS, MOST, moved, sketch


@dataclass(frozen=True, slots=True)
class FoolsGold:
    """(x + Σ α_j x_j)/(1 + Σ α_j), with α_j near 0 for those whose updates, summed, point where those of others do.

    It remembers MOST peers: of each the sum of its updates, which are what it told minus our vector before the local steps; above BUCKETS
    numbers, a sketch. All remembered are compared, those who did not tell this round as well. We trust ourselves: our own weight is 1,
    and our updates are compared with nobody's. An absent peer's vector is our own, with weight 1. Whoever has no seat, as MOST others
    were here, has weight 0.

    Source: Fung, Yoon and Beschastnikh 2018 (arXiv:1808.04866); that a node trusts itself, Werthenbach and Pouwelse 2023
    (arXiv:2306.15044). Seats are ours.

    Args:
        seed: of the sketches; whoever knows it can tell clones what makes them look a little different.
    """

    seed: int = 0
    seats: ClassVar[int] = MOST

    def tolerates(self, k: int) -> int:
        """None, but for clones."""
        return 0

    def start(self, own: Tensor) -> Tensor:
        """Nothing is known of anybody."""
        return own.new_zeros((own.shape[0], MOST * min(own.shape[1], BUCKETS)))

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), what is known of everybody, and whose weight is below a half."""
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
        """(p, s) how some moved."""
        if told.shape[-1] <= BUCKETS:
            return moved(told, before)
        return sketch(told, self.seed, origin=before)


def _weights(histories: Tensor) -> Tensor:
    """(M,) float64 weights by histories (M, s), 1 where there is none."""
    weights = torch.ones(len(histories), dtype=torch.float64, device=histories.device)
    known = histories.any(dim=1).nonzero().flatten()
    weights[known] = foolsgold.weights(foolsgold.similarity(histories[known]))
    return weights
