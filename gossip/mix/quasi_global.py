"""Quasi-global momentum: momentum of how the mixed model moved, not of a node's own gradients.

Shapes: d parameters.
"""

from dataclasses import dataclass
from typing import Any

from starling.gossip.api import Phase
from starling.gossip.bounds import ShareBelowOne, parameters
from starling.gossip.errors import ConfigError
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.base import MixerBase


@dataclass(frozen=True, slots=True)
class Moving:
    """Momentum in gradient units, and the model at the end of the last round. Both (…, d)."""

    m: Tensor
    origin: Tensor


@parameters
class QuasiGlobal(MixerBase):
    """QG-DSGDm: local steps along g + β·m; m <- β·m + (1 − β)·(x before − x after mixing)/(K·η).

    Nothing beyond the model is exchanged. Where data differ the models still stay away from the optimum, nearer than with
    each node's own momentum. It is the momentum: the local optimiser is to be SGD with momentum 0. m moves once a
    round; a round without local steps leaves it alone.

    Source: Lin, Karimireddy, Stich and Jaggi 2021 (arXiv:2102.04761), Algorithm 1.

    Args:
        beta: in [0, 1). 0: plain averaging.
    """

    beta: ShareBelowOne = 0.9

    @staticmethod
    def check(agreed: Any) -> list[str]:
        """Check rules for the manifest; return warnings."""
        optimizer = agreed.optimizer
        if optimizer.kind != "sgd" or optimizer.momentum:
            momentum = f" with {optimizer.momentum:g}" if optimizer.kind == "sgd" else ""
            raise ConfigError(
                f"optimizer.momentum: quasi_global brings its own (mix.beta), so sgd's must be 0, got {optimizer.kind}{momentum}; "
                "try `--set optimizer.momentum=0`"
            )
        return []

    def start(self, x: Tensor) -> Moving:
        """Start without momentum."""
        return Moving(torch.zeros_like(x), x.clone())

    def correct(self, state: Moving, gradient: Tensor) -> tuple[Tensor, Moving]:
        """Return the direction g + β·m."""
        return gradient + self.beta * state.m, state

    def absorb(self, state: Moving, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Moving]:
        """Return the averaged model; the momentum takes up how far it is from the round's beginning."""
        if phase.local_steps == 0.0:
            return shared, Moving(state.m, shared.clone())
        went = (state.origin - shared) / (phase.local_steps * phase.lr)
        return shared, Moving(self.beta * state.m + (1.0 - self.beta) * went, shared.clone())
