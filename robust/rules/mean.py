"""No defense: what every rule is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from starling.gossip.api import Combined
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.api import Context, nothing
from starling.robust.rules.stack import Stack


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of all m vectors. One liar moves it anywhere."""

    def tolerates(self, k: int) -> int:
        """None."""
        return 0

    def start(self, own: Tensor) -> Tensor:
        """Nothing."""
        return nothing(own)

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), and nothing."""
        weights = torch.full((stack.own.shape[0], stack.count), 1 / stack.count, dtype=torch.float64)
        return stack.combination(weights.to(stack.own.device)), context.kept, None
