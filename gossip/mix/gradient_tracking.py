"""Textbook gradient tracking, with one tracker per node that travels beside the model.

Shapes: d parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gossip.api import Effect


@dataclass(frozen=True, slots=True)
class Tracker:
    """y, the running estimate of the mean gradient, and the last gradient it contains; both (d,)."""

    y: Tensor
    previous: Tensor


@dataclass(frozen=True, slots=True)
class GradientTracking:
    """DIGing with local steps, adapt then combine: y_i += g_i − (g_i before); step along y_i; mix x and y alike.

    Invariant: Σ_i y_i = Σ_i g_i with the gradients last seen, through every step and every antisymmetric exchange.
    A node that departs or restarts takes its share of that sum with it, and the others are biased for ever: textbook behaviour,
    kept for comparison and for clusters where nobody leaves. `Pet` is the one to use among volunteers.

    Source: Nedić, Olshevsky and Shi 2017 (arXiv:1607.03218); local steps: Nguyen et al. 2022 (arXiv:2210.04757).
    """

    @property
    def width(self) -> int:
        """Two vectors: model and tracker."""
        return 2

    def start(self, x: Tensor) -> Tracker:
        """Zeros: the first local step sets y to the first gradient."""
        return Tracker(torch.zeros_like(x), torch.zeros_like(x))

    def correct(self, state: Tracker, gradient: Tensor) -> tuple[Tensor, Tracker]:
        """The new y = y + g − (g before)."""
        y = state.y + (gradient - state.previous)
        return y, Tracker(y, gradient.clone())

    def shared(self, state: Tracker, x: Tensor) -> Tensor:
        """(2d,): x, then y."""
        return torch.cat((x, state.y))

    def absorb(self, state: Tracker, x: Tensor, effects: Sequence[Effect]) -> tuple[Tensor, Tracker]:
        """(x, y)[S] += θ·v for each effect in turn."""
        both = self.shared(state, x)
        for effect in effects:
            both[effect.support.index(both.numel())] += effect.theta * effect.value
        d = x.numel()
        return both[:d].clone(), Tracker(both[d:].clone(), state.previous)

    def settle(self, state: Tracker, peer: str) -> Tracker:
        """What moved between trackers cannot be told apart by peer."""
        return state

    def revoke(self, state: Tracker, peer: str, *, settled: bool) -> Tracker:
        """What moved between trackers cannot be told apart by peer."""
        return state

    def gain(self, theta: float, ratio: float, local_steps: float, lr: float) -> float:
        """No flows: the tracker is mixed like the model."""
        return 0.0
