"""Textbook gradient tracking, with one tracker per node that travels beside the model.

Shapes: d parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from starling.gossip.api import Phase
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.averaging import Plain
from starling.gossip.mix.public_copies import Copies
from starling.gossip.mix.running_sums import PullPush


@dataclass(frozen=True, slots=True)
class Tracker:
    """y, the running estimate of the mean gradient, and the last gradient it contains; both (…, d)."""

    y: Tensor
    previous: Tensor


@dataclass(frozen=True, slots=True)
class GradientTracking:
    """DIGing with local steps, adapt then combine: y_i += g_i − (g_i before); step along y_i; mix x and y alike.

    Invariant: Σ_i y_i = Σ_i g_i with the gradients last seen, through every step and every antisymmetric exchange.
    A node that departs or restarts takes its share of that sum with it, and the others are biased for ever: textbook behaviour,
    kept for comparison and for clusters where nobody leaves. `Pet` is the one to use among volunteers.

    Source: Nedić, Olshevsky and Shi 2017 (arXiv:1607.03218); local steps: Nguyen et al. 2022 (arXiv:2210.04757).

    Args:
        edge: how model and tracker are averaged.
    """

    edge: Plain | Copies | PullPush = field(default_factory=Plain)

    @property
    def asynchronous(self) -> bool:
        """As the edge allows."""
        return not self.edge.static

    @property
    def static(self) -> bool:
        """As the edge needs."""
        return self.edge.static

    def size(self, dim: int) -> int:
        """Two vectors: model and tracker."""
        return 2 * dim

    def start(self, x: Tensor) -> Tracker:
        """Zeros: the first local step sets y to the first gradient."""
        return Tracker(torch.zeros_like(x), torch.zeros_like(x))

    def correct(self, state: Tracker, gradient: Tensor) -> tuple[Tensor, Tracker]:
        """The new y = y + g − (g before)."""
        y = state.y + (gradient - state.previous)
        return y, Tracker(y, gradient.clone())

    def publish(self, state: Tracker, x: Tensor, phase: Phase) -> tuple[Tensor, Tracker]:
        """As it is."""
        return x, state

    def shared(self, state: Tracker, x: Tensor) -> Tensor:
        """(…, 2d): x, then y."""
        return torch.cat((x, state.y), dim=-1)

    def absorb(self, state: Tracker, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Tracker]:
        """Model and tracker, mixed alike."""
        mixed, y = shared.tensor_split(2, dim=-1)
        return mixed.clone(), Tracker(y.clone(), state.previous)

    def corrected(self, state: Tracker, flows: Tensor) -> Tracker:
        """There are no flows."""
        return state


def gradient_tracking() -> GradientTracking:
    """DIGing."""
    return GradientTracking()


def beer(gamma: float) -> GradientTracking:
    """BEER: gradient tracking of public copies, with a consensus step γ in (0, 1].

    Deviation: BEER takes the gradient before it averages, at the x that was compressed; here it is taken after, at the x that
    averaging led to, as everywhere in this package. Model and tracker are compressed as one vector.

    Source: Zhao et al. 2022 (arXiv:2201.13320).
    """
    return GradientTracking(Copies(gamma))
