"""K-GT: gradient tracking over whole rounds of local steps.

Shapes: d parameters.
"""

from dataclasses import dataclass

from starling.gossip.api import Phase
from starling.gossip.bounds import Positive, parameters
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.base import MixerBase


@dataclass(frozen=True, slots=True)
class Tracking:
    """State of a node, all (…, d)."""

    c: Tensor  # correction, gradient units
    origin: Tensor  # the model at the end of the last round
    v: Tensor  # mean direction of this round's local steps


@parameters
class KGt(MixerBase):
    """K local steps along g + c; then v = (x before − x)/(K·η_c) is mixed like x, and c += (mixed v) − v.

    Invariant: Σ_i c_i = 0 through every antisymmetric exchange, so the mean model follows the mean gradient. A node that
    departs or restarts takes its c along, and the others are biased for ever, as with `GradientTracking`.

    c begins at 0, which converges like the paper's mean_j g_j(x_0) − g_i(x_0) and needs no exchange before the first.
    A round without local steps has v = 0 and leaves c alone.

    Source: Liu, Lin, Koloskova and Stich 2023 (arXiv:2301.01313), Algorithm 1.

    Args:
        eta_s: global step size, > 0: the share of a round's displacement that is kept. 1 keeps the model as it is.
    """

    eta_s: Positive = 1.0

    def start(self, x: Tensor) -> Tracking:
        """Start without a correction."""
        return Tracking(torch.zeros_like(x), x.clone(), torch.zeros_like(x))

    def correct(self, state: Tracking, gradient: Tensor) -> tuple[Tensor, Tracking]:
        """Return the direction g + c."""
        return gradient + state.c, state

    def publish(self, state: Tracking, x: Tensor, phase: Phase) -> tuple[Tensor, Tracking]:
        """Finds v; with eta_s other than 1 the model takes that share of its way."""
        if phase.local_steps == 0.0:
            return x, Tracking(state.c, state.origin, torch.zeros_like(x))
        v = (state.origin - x) / (phase.local_steps * phase.lr)
        if self.eta_s != 1.0:
            x = state.origin + self.eta_s * (x - state.origin)
        return x, Tracking(state.c, state.origin, v)

    def shared(self, state: Tracking, x: Tensor) -> Tensor:
        """Return (…, 2d): x, then v."""
        return torch.cat((x, state.v), dim=-1)

    def absorb(self, state: Tracking, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Tracking]:
        """Return the averaged model; c moves by what mixing changed in v."""
        mixed, v = shared.tensor_split(2, dim=-1)
        return mixed.clone(), Tracking(state.c + (v - state.v), mixed.clone(), v.clone())
