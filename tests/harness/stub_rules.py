"""Rules to test gathering with: arithmetic that is equal for single and batched rows, and uses all inputs."""

from dataclasses import dataclass
from typing import ClassVar

import torch


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of the own vector and all present ones; absent ones count as the own."""

    memory_slots: ClassVar[int] = 0

    def start(self, own):
        return own.new_zeros((*own.shape[:-1], 0))

    def combine(self, kept, own, received, present, before, losses, slots=None):
        received = torch.where(present[..., None], received, own[..., None, :])
        total = own
        for place in range(received.shape[-2]):
            total = total + received[..., place, :]
        return total / (received.shape[-2] + 1), kept, None


@dataclass(frozen=True, slots=True)
class Wary:
    """The mean, scaled by everything a rule may use: its state, the model before local steps, losses and absences."""

    memory_slots: ClassVar[int] = 0

    def start(self, own):
        return own.new_zeros((*own.shape[:-1], 2))

    def combine(self, kept, own, received, present, before, losses, slots=None):
        mixed, _, _ = Mean().combine(kept[..., :0], own, received, present, before, losses)
        worth = received.new_zeros(received.shape[:-1]) if losses is None else losses(received)
        step = (own - before)[..., :1]
        kept = torch.cat((kept[..., :1] + 1.0, kept[..., 1:] + step), dim=-1)
        doubt = 1.0 + 0.01 * kept[..., :1] + 0.001 * kept[..., 1:]
        for place in range(received.shape[-2]):
            doubt = doubt + 0.001 * worth[..., place, None] + 0.01 * (~present[..., place, None]).to(own)
        return own + (mixed - own) / doubt, kept, None


@dataclass(frozen=True, slots=True)
class Counting:
    """The mean, in which a peer counts less the more often it was received; it stores three peers; others do not count."""

    memory_slots: ClassVar[int] = 3

    def start(self, own):
        return own.new_zeros((*own.shape[:-1], 3))

    def combine(self, kept, own, received, present, before, losses, slots=None):
        kept, mixed = kept.clone(), own
        for place in range(received.shape[-2]):
            slot = slots[..., place, None]
            here = (present[..., place, None] & (slot >= 0)).to(own)
            kept.scatter_add_(-1, slot.clamp_min(0), here)
            weight = here / (2.0 + kept.gather(-1, slot.clamp_min(0)))
            mixed = mixed + weight * (torch.where(here > 0, received[..., place, :], own) - own)
        return mixed, kept, None
