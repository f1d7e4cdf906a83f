"""Gradient tracking, with one tracker per node that is exchanged with the model: DIGing, BEER, R-FAST.

Shapes: d parameters.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from starling.gossip.api import Phase
from starling.gossip.bounds import PositiveShare, parameters
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.base import MixerBase
from starling.gossip.mix.public_copies import PublicCopies
from starling.gossip.mix.running_sums import PullPush


@dataclass(frozen=True, slots=True)
class Tracker:
    """y, the running estimate of the mean gradient, and the last gradient it contains; both (…, d)."""

    y: Tensor
    previous: Tensor


@dataclass(frozen=True, slots=True)
class GradientTracking(MixerBase):
    """DIGing with local steps, adapt then combine: y_i += g_i − (g_i before); step along y_i; mix x and y with the same weights.

    Invariant: Σ_i y_i = Σ_i g_i with the gradients last seen, through every step and every antisymmetric exchange.
    A node that departs or restarts takes its share of that sum with it, and the others are biased for ever: textbook behaviour,
    kept for comparison and for clusters where nodes do not leave. Use `Pet` among volunteers.

    Source: Nedić, Olshevsky and Shi 2017 (arXiv:1607.03218); local steps: Nguyen et al. 2022 (arXiv:2210.04757).
    """

    asynchronous: ClassVar[bool] = True

    @staticmethod
    def check(agreed: Any) -> list[str]:
        """Check rules for the manifest; return warnings."""
        pace = agreed.pace
        if agreed.mix.kind == "gradient_tracking" and pace.kind == "steps" and pace.local_steps > 1:
            warning = (
                "pace.local_steps: gradient_tracking is defined for 1 (Nedić et al. 2017, arXiv:1607.03218), with "
                f"{pace.local_steps} its tracker follows a node's own samples and may learn far worse than no tracker; "
                "try `--set mix=k_gt`, made for local steps"
            )
            return [warning]
        return []

    def start(self, x: Tensor) -> Tracker:
        """Zeros: the first local step sets y to the first gradient."""
        return Tracker(torch.zeros_like(x), torch.zeros_like(x))

    def correct(self, state: Tracker, gradient: Tensor) -> tuple[Tensor, Tracker]:
        """Return the new y = y + g − (g before)."""
        y = state.y + (gradient - state.previous)
        return y, Tracker(y, gradient.clone())

    def shared(self, state: Tracker, x: Tensor) -> Tensor:
        """Return (…, 2d): x, then y."""
        return torch.cat((x, state.y), dim=-1)

    def absorb(self, state: Tracker, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Tracker]:
        """Return model and tracker, mixed with the same weights."""
        mixed, y = shared.tensor_split(2, dim=-1)
        return mixed.clone(), Tracker(y.clone(), state.previous)


@parameters
class Beer(GradientTracking):
    """BEER: gradient tracking of public copies.

    Deviation: BEER takes the gradient before it averages, at the x that was compressed; here it is taken after, at the x that
    averaging led to, as everywhere in this package. Model and tracker are compressed as one vector.

    Source: Zhao et al. 2022 (arXiv:2201.13320).

    Args:
        gamma: consensus step γ, in (0, 1].
    """

    gamma: PositiveShare = 0.02
    asynchronous: ClassVar[bool] = False

    @property
    def edge(self) -> PublicCopies:
        """The copies."""
        return PublicCopies(self.gamma)


@dataclass(frozen=True, slots=True)
class RFast(GradientTracking):
    """R-FAST: models are pulled, trackers are pushed as running sums; tolerates lost and late messages, on directed overlays.

    Invariant: Σ_i y_i + Σ_edges (given − seen) = Σ_i g_i with the gradients last seen, in spite of lost, late or repeated messages; so the
    optimum is reached exactly. A node that goes takes y and what is on its way with it, and the others are biased for ever, unless
    it first adds its y − g, with its give of 1, to one neighbor's.

    Deviations. The paper keeps of y what a split leaves and steps along that: a rate that is smaller by the share kept, 1/(degree + 1)
    for equal weights. Here a node steps along all of its y before it splits it, so rates are those of `GradientTracking`. The paper sends
    the model as it was before the last averaging, here it is sent after the next step; and a model that was received counts once, not
    again until a newer one comes.

    Source: Zhu et al. 2023 (arXiv:2307.11617). With whole messages on a fixed overlay it is push-pull, Pu et al. 2021
    (arXiv:1810.06653).
    """

    edge: ClassVar[PullPush] = PullPush()
