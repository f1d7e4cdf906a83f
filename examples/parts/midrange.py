"""A combining rule: half-way between the extremes of each coordinate, after `trim` values at either end were dropped."""

from dataclasses import dataclass
from typing import ClassVar

from starling.gossip.lazy_torch import torch
from starling.robust.catalogue import RuleFacts


@dataclass(frozen=True, slots=True)
class Midrange:
    trim: int = 1  # values dropped at either end
    facts: ClassVar[RuleFacts] = RuleFacts(2, share=0.2, source="m >= 2·trim + 1")

    def tolerates(self, k):
        return self.trim if k >= 2 * self.trim else 0

    def start(self, own):
        return own.new_zeros((own.shape[0], 0))

    def reduce(self, stack, context):
        own = stack.own[:, None]
        vectors = torch.cat((own, torch.where(stack.present[..., None], stack.told, own)), dim=1).sort(dim=1).values
        low, high = vectors[:, self.trim], vectors[:, -1 - self.trim]
        return (low + high) / 2, context.kept, None
