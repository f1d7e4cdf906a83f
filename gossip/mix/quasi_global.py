"""Quasi-global momentum: momentum of how the mixed model moved, not of a node's own gradients.

Shapes: d parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from starling.gossip.api import Phase
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.averaging import Plain


@dataclass(frozen=True, slots=True)
class Moving:
    """Both (…, d).

    Args:
        m: momentum, gradient units.
        origin: the model at the end of the last round.
    """

    m: Tensor
    origin: Tensor


@dataclass(frozen=True, slots=True)
class QuasiGlobal:
    """QG-DSGDm: local steps along g + β·m; m <- β·m + (1 − β)·(x before − x after mixing)/(K·η).

    Nothing beyond the model is exchanged. Where data differ the models still stay away from the optimum, nearer than with
    each node's own momentum. It is the momentum: the local optimiser is to be SGD with momentum 0. m moves once a
    round; a round without local steps leaves it alone.

    Source: Lin, Karimireddy, Stich and Jaggi 2021 (arXiv:2102.04761), Algorithm 1.

    Args:
        beta: in [0, 1). 0: plain averaging.
    """

    beta: float = 0.9
    edge: ClassVar[Plain] = Plain()
    asynchronous: ClassVar[bool] = False
    static: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.beta < 1.0:
            raise ValueError(f"beta must be in [0, 1), got {self.beta}")

    def size(self, dim: int) -> int:
        """One vector: the model."""
        return dim

    def start(self, x: Tensor) -> Moving:
        """No momentum."""
        return Moving(torch.zeros_like(x), x.clone())

    def correct(self, state: Moving, gradient: Tensor) -> tuple[Tensor, Moving]:
        """The direction g + β·m."""
        return gradient + self.beta * state.m, state

    def publish(self, state: Moving, x: Tensor, phase: Phase) -> tuple[Tensor, Moving]:
        """As it is."""
        return x, state

    def shared(self, state: Moving, x: Tensor) -> Tensor:
        """The model itself."""
        return x

    def absorb(self, state: Moving, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Moving]:
        """The averaged model; the momentum learns how far that is from the round's beginning."""
        if phase.local_steps == 0.0:
            return shared, Moving(state.m, shared.clone())
        went = (state.origin - shared) / (phase.local_steps * phase.lr)
        return shared, Moving(self.beta * state.m + (1.0 - self.beta) * went, shared.clone())

    def corrected(self, state: Moving, flows: Tensor) -> Moving:
        """There are no flows."""
        return state
