"""Exact diffusion and D²: plain averaging, less what averaging did the round before.

Shapes: d parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from starling.gossip.api import Phase
from starling.gossip.lazy_torch import Tensor
from starling.gossip.mix.averaging import Plain


@dataclass(frozen=True, slots=True)
class Steps:
    """Both (…, d).

    Args:
        psi: the model after the last local step, before any correction.
        origin: the model at the end of the last round.
    """

    psi: Tensor
    origin: Tensor


@dataclass(frozen=True, slots=True)
class ExactDiffusion:
    """ψ = x after the local step; φ = ψ + x − (ψ of the round before); x <- V·φ.

    lazy: V = (I + W)/2, exact diffusion and NIDS. Otherwise V = W, which is D²: φ = 2x_t − x_{t−1} − η·g_t + η·g_{t−1}.

    One vector is exchanged and the optimum is reached exactly, if one symmetric W holds in every round: on overlays that
    change or are directed both diverge, and every lost exchange is such a change. D² needs λ_min(W) > −1/3 besides
    (`starling.gossip.overlay.measure.check_static`). Exact with one local step a round; with more, the models drift apart in between
    and end where those drifts cancel, not the gradients: `KGt` and `Pet` are made for that.

    Sources: exact diffusion Yuan, Ying, Zhao and Sayed 2019 (arXiv:1702.05122); NIDS Li, Shi and Yan 2019 (arXiv:1704.07807);
    D² Tang et al. 2018 (arXiv:1803.07068).

    Args:
        lazy: take half of what exchanges change.
    """

    lazy: bool
    edge: ClassVar[Plain] = Plain()
    asynchronous: ClassVar[bool] = False
    static: ClassVar[bool] = True

    def size(self, dim: int) -> int:
        """One vector: the model."""
        return dim

    def start(self, x: Tensor) -> Steps:
        """As if the round before had done nothing, so that the first φ is ψ."""
        return Steps(x.clone(), x.clone())

    def correct(self, state: Steps, gradient: Tensor) -> tuple[Tensor, Steps]:
        """The gradient itself."""
        return gradient, state

    def publish(self, state: Steps, x: Tensor, phase: Phase) -> tuple[Tensor, Steps]:
        """The corrected model φ."""
        return x + (state.origin - state.psi), Steps(x.clone(), state.origin)

    def shared(self, state: Steps, x: Tensor) -> Tensor:
        """The corrected model."""
        return x

    def absorb(self, state: Steps, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Steps]:
        """The averaged model, or half-way there."""
        mixed = x + (shared - x) / 2.0 if self.lazy else shared
        return mixed, Steps(state.psi, mixed.clone())

    def corrected(self, state: Steps, flows: Tensor) -> Steps:
        """There are no flows."""
        return state


def exact_diffusion() -> ExactDiffusion:
    """Exact diffusion: with the lazy (I + W)/2."""
    return ExactDiffusion(lazy=True)


def d2() -> ExactDiffusion:
    """D²: with W itself."""
    return ExactDiffusion(lazy=False)
