"""Plain decentralised SGD: average with neighbors, no correction. CHOCO: the same, of copies that compressed messages keep up.

Shapes: d parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from starling.gossip.api import Phase
from starling.gossip.lazy_torch import Tensor
from starling.gossip.mix.averaging import Plain
from starling.gossip.mix.public_copies import Copies

Order = Literal["atc", "awc"]


@dataclass(frozen=True, slots=True)
class Origin:
    """The model (…, d) at the end of the last round."""

    origin: Tensor


@dataclass(frozen=True, slots=True)
class Dsgd:
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
        edge: how models are averaged.
    """

    order: Order = "atc"
    edge: Plain | Copies = field(default_factory=Plain)

    def __post_init__(self) -> None:
        if self.order not in get_args(Order):
            raise ValueError(f"order must be one of {', '.join(get_args(Order))}, got {self.order!r}")

    @property
    def asynchronous(self) -> bool:
        """As the edge allows."""
        return not self.edge.static

    @property
    def static(self) -> bool:
        """As the edge needs."""
        return self.edge.static

    def size(self, dim: int) -> int:
        """One vector: the model."""
        return dim

    def start(self, x: Tensor) -> Origin | None:
        """Nothing, unless the model before the local steps is what exchanges are about."""
        return Origin(x.clone()) if self.order == "awc" else None

    def correct(self, state: Origin | None, gradient: Tensor) -> tuple[Tensor, Origin | None]:
        """The gradient itself."""
        return gradient, state

    def publish(self, state: Origin | None, x: Tensor, phase: Phase) -> tuple[Tensor, Origin | None]:
        """As it is."""
        return x, state

    def shared(self, state: Origin | None, x: Tensor) -> Tensor:
        """The model, after or before its local steps."""
        return x if state is None else state.origin

    def absorb(self, state: Origin | None, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Origin | None]:
        """The averaged model, or what averaging changed in the old one added to the new one."""
        if state is None:
            return shared, None
        mixed = x + (shared - state.origin)
        return mixed, Origin(mixed.clone())

    def corrected(self, state: Origin | None, flows: Tensor) -> Origin | None:
        """There are no flows."""
        return state


def dsgd(order: Order = "atc") -> Dsgd:
    """DSGD."""
    return Dsgd(order)


def choco(gamma: float) -> Dsgd:
    """CHOCO-SGD: DSGD of public copies, with a consensus step γ in (0, 1]."""
    return Dsgd(edge=Copies(gamma))
