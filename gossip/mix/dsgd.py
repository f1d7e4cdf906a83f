"""Decentralised SGD: average with neighbors, no correction. CHOCO-SGD: the same, of public copies.

Shapes: d parameters.
"""

from typing import ClassVar, Literal

from starling.gossip.api import Phase
from starling.gossip.bounds import PositiveShare, parameters
from starling.gossip.lazy_torch import Tensor
from starling.gossip.mix.base import MixerBase, Origin
from starling.gossip.mix.public_copies import PublicCopies

Order = Literal["atc", "awc"]


@parameters
class Dsgd(MixerBase):
    """DSGD. With z_i the model of node i after its local steps from x_i:

        atc, adapt then combine          x_i <- Σ_j w_ij z_j
        awc, adapt while communicating   x_i <- Σ_j w_ij x_j + (z_i − x_i)

    With links of equal weight both ways the mean model follows the mean gradient exactly. Where data differ between nodes the
    models stay at a distance of order lr·ζ/(1 − ρ) from the optimum, which is what `Pet` removes; with awc it is larger, but what
    is exchanged is known before the local steps. That is also the non-blocking exchange of SwarmSGD.

    Source: Lian et al. 2017 (arXiv:1705.09056); pairwise and asynchronous, AD-PSGD: Lian et al. 2018 (arXiv:1710.06952);
    with local steps and stale copies, SwarmSGD: Nadiradze et al. 2021 (arXiv:1910.12308).

    Args:
        order: "atc" or "awc".
    """

    order: Order = "atc"
    asynchronous: ClassVar[bool] = True

    @property
    def replaces(self) -> bool:
        """Return whether the order is adapt-then-combine."""
        return self.order == "atc"

    def start(self, x: Tensor) -> Origin | None:
        """Awc averages the model before its local steps."""
        return Origin(x.clone()) if self.order == "awc" else None

    def shared(self, state: Origin | None, x: Tensor) -> Tensor:
        """Return the model, after or before its local steps."""
        return x if state is None else state.origin

    def absorb(self, state: Origin | None, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Origin | None]:
        """Return the averaged model; or the new model plus what averaging changed in the old one."""
        if state is None:
            return shared, None
        mixed = x + (shared - state.origin)
        return mixed, Origin(mixed.clone())


@parameters
class Choco(MixerBase):
    """CHOCO-SGD: DSGD of public copies.

    Args:
        gamma: consensus step γ, in (0, 1].
    """

    gamma: PositiveShare = 0.02

    @property
    def edge(self) -> PublicCopies:
        """The copies."""
        return PublicCopies(self.gamma)
