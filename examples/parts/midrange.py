"""A combining rule: half-way between the extremes of each coordinate, after `trim` values at either end were dropped."""

from dataclasses import dataclass
from typing import ClassVar

from starling.gossip.lazy_torch import torch
from starling.robust.catalogue import RuleFacts


@dataclass(frozen=True, slots=True)
class Midrange:
    trim: int = 1  # values dropped at either end
    facts: ClassVar[RuleFacts] = RuleFacts(2, share=0.2, source="m >= 2·trim + 1")

    def reduce(self, stack, context):
        own = stack.own[:, None]
        vectors = torch.cat((own, torch.where(stack.present[..., None], stack.received, own)), dim=1).sort(dim=1).values
        low, high = vectors[:, self.trim], vectors[:, -1 - self.trim]
        return (low + high) / 2, context.state, None
