"""A2CiD2: a second copy of the model gives averaging a momentum in continuous time, for slow overlays.

Shapes: d parameters.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from starling.gossip.api import Phase
from starling.gossip.bounds import Positive, parameters
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.base import MixerBase


@dataclass(frozen=True, slots=True)
class Lead:
    """x̃ − x (…, d), the difference of the second copy. Local steps move both copies equally, so they do not change it."""

    lead: Tensor


@parameters
class A2Cid2(MixerBase):
    """Pairwise averaging with a second copy x̃ of x; the two attract each other at rate η = 1/(2·√(χ1·χ2)).

        local step       x, x̃ −= lr·g
        after dt steps   (x, x̃) <- exp(dt·[[−η, η], [η, −η]])·(x, x̃)
        exchange         x += θ·v,   x̃ += √(χ1/χ2)·θ·v

    x is exchanged as it is after the pull at both ends, so one v changes both copies of both ends: Σ x and Σ x̃ are
    kept. (The authors' code sends x before it, so that the two ends differ a little.) With θ = 1/2 these are the
    paper's α and α̃. Only one copy is exchanged.

    Averaging takes √(χ1·χ2) instead of χ1: much on a ring, nothing on well connected overlays, where χ1 ≈ χ2.
    Where data differ the models stay away from the optimum as with `Dsgd`.

    Source: Nabli, Belilovsky and Oyallon 2023 (arXiv:2306.08289).

    Args:
        chi1: χ1 of `starling.gossip.overlay.measure.chi`, in local steps, > 0.
        chi2: χ2, likewise, in (0, χ1].
    """

    chi1: Positive = 1.0
    chi2: Positive = 1.0
    asynchronous: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0.0 < self.chi2 <= self.chi1:
            raise ValueError(f"chi2 must be in (0, chi1 = {self.chi1}], got {self.chi2}")

    @property
    def eta(self) -> float:
        """Rate at which the copies approach each other, per local step."""
        return 0.5 / math.sqrt(self.chi1 * self.chi2)

    @property
    def ahead(self) -> float:
        """α̃/α: how much more an exchange moves x̃ than x, >= 1."""
        return math.sqrt(self.chi1 / self.chi2)

    def start(self, x: Tensor) -> Lead:
        """Return equal copies."""
        return Lead(torch.zeros_like(x))

    def publish(self, state: Lead, x: Tensor, phase: Phase) -> tuple[Tensor, Lead]:
        """Mix the two copies for the duration of the local steps."""
        lead = state.lead * math.exp(-2.0 * self.eta * phase.local_steps)
        return x + (state.lead - lead) / 2.0, Lead(lead)

    def absorb(self, state: Lead, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Lead]:
        """Return the averaged model; the copy moves further than it."""
        return shared, Lead(state.lead + (self.ahead - 1.0) * (shared - x))
