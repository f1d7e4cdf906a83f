"""Rules to test gathering with: arithmetic that is the same row by row and all together, and reacts to all it is given."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Mean:
    """Of our vector and all that is present; what is absent counts as our own."""

    def start(self, own):
        return own.new_zeros((*own.shape[:-1], 0))

    def combine(self, kept, own, told, present, before, losses):
        told = torch.where(present[..., None], told, own[..., None, :])
        total = own
        for place in range(told.shape[-2]):
            total = total + told[..., place, :]
        return total / (told.shape[-2] + 1), kept, None


@dataclass(frozen=True, slots=True)
class Wary:
    """The mean, scaled by all a rule may look at: what it keeps, the model before local steps, losses and who is missing."""

    def start(self, own):
        return own.new_zeros((*own.shape[:-1], 2))

    def combine(self, kept, own, told, present, before, losses):
        mixed, _, _ = Mean().combine(kept[..., :0], own, told, present, before, losses)
        worth = told.new_zeros(told.shape[:-1]) if losses is None else losses(told)
        step = (own - before)[..., :1]
        kept = torch.cat((kept[..., :1] + 1.0, kept[..., 1:] + step), dim=-1)
        doubt = 1.0 + 0.01 * kept[..., :1] + 0.001 * kept[..., 1:]
        for place in range(told.shape[-2]):
            doubt = doubt + 0.001 * worth[..., place, None] + 0.01 * (~present[..., place, None]).to(own)
        return own + (mixed - own) / doubt, kept, None
