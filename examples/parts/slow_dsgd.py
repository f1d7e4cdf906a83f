"""A mixing algorithm: DSGD that goes only a part of the way to the average."""

from dataclasses import dataclass
from typing import ClassVar

from starling.gossip.mix.base import MixerBase
from starling.gossip.mix.catalogue import MixerFacts


@dataclass(frozen=True)
class SlowDsgd(MixerBase):
    pace: float = 0.8  # share of the way, in (0, 1]
    facts: ClassVar[MixerFacts] = MixerFacts()

    def __post_init__(self):
        if not 0.0 < self.pace <= 1.0:
            raise ValueError(f"pace must be in (0, 1], got {self.pace}")

    def absorb(self, state, x, shared, phase):
        return x + self.pace * (shared - x), state
