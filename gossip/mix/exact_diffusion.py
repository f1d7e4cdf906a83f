"""Exact diffusion and D²: plain averaging, less what averaging did the round before.

Shapes: d parameters.
"""

from dataclasses import dataclass
from typing import ClassVar

from starling.gossip.api import Phase
from starling.gossip.lazy_torch import Tensor
from starling.gossip.mix.base import MixerBase


@dataclass(frozen=True, slots=True)
class Steps:
    """The model after the last local step, before any correction; and at the end of the last round. Both (…, d)."""

    psi: Tensor
    origin: Tensor


@dataclass(frozen=True, slots=True)
class ExactDiffusion(MixerBase):
    """ψ = x after the local step; φ = ψ + x − (ψ of the round before); x <- V·φ with V = (I + W)/2.

    One vector is exchanged and the optimum is reached exactly, if one symmetric W holds in every round: on overlays that
    change or are directed this and `D2` diverge, and every lost exchange is such a change. Exact with one local step a round; with
    more, the models drift apart in between and end where those drifts cancel, not the gradients: use `KGt` or `Pet`.

    Sources: exact diffusion Yuan, Ying, Zhao and Sayed 2019 (arXiv:1702.05122); NIDS Li, Shi and Yan 2019 (arXiv:1704.07807).
    """

    lazy: ClassVar[bool] = True

    def start(self, x: Tensor) -> Steps:
        """Return the state after a round without change, so that the first φ is ψ."""
        return Steps(x.clone(), x.clone())

    def publish(self, state: Steps, x: Tensor, phase: Phase) -> tuple[Tensor, Steps]:
        """Return the corrected model φ."""
        return x + (state.origin - state.psi), Steps(x.clone(), state.origin)

    def absorb(self, state: Steps, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Steps]:
        """Return the averaged model, or half-way there."""
        mixed = x + (shared - x) / 2.0 if self.lazy else shared
        return mixed, Steps(state.psi, mixed.clone())


@dataclass(frozen=True, slots=True)
class D2(ExactDiffusion):
    """D²: `ExactDiffusion` with V = W, hence φ = 2x_t − x_{t−1} − η·g_t + η·g_{t−1}.

    Needs λ_min(W) > −1/3 besides (`starling.gossip.overlay.measure.check_static`).

    Source: Tang et al. 2018 (arXiv:1803.07068).
    """

    lazy: ClassVar[bool] = False
