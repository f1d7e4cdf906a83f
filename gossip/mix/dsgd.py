"""Plain decentralised SGD: average with neighbors, no correction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gossip.api import Phase
from gossip.mix.plain import Plain


@dataclass(frozen=True, slots=True)
class Dsgd:
    """DSGD, adapt then combine: x_i <- Σ_j w_ij (x_j after its local steps).

    With links of equal weight both ways the mean model follows the mean gradient exactly. Where data differ between nodes the
    models stay at a distance of order lr·ζ/(1 − ρ) from the optimum, which is what `Pet` removes.

    Source: Lian et al. 2017 (arXiv:1705.09056); pairwise and asynchronous: Lian et al. 2018 (arXiv:1710.06952).
    """

    edge: ClassVar[Plain] = Plain()
    asynchronous: ClassVar[bool] = True
    static: ClassVar[bool] = False

    def size(self, dim: int) -> int:
        """One vector: the model."""
        return dim

    def start(self, x: Tensor) -> None:
        """There is no state."""

    def correct(self, state: None, gradient: Tensor) -> tuple[Tensor, None]:
        """The gradient itself."""
        return gradient, None

    def publish(self, state: None, x: Tensor, phase: Phase) -> tuple[Tensor, None]:
        """As it is."""
        return x, None

    def shared(self, state: None, x: Tensor) -> Tensor:
        """The model itself."""
        return x

    def absorb(self, state: None, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, None]:
        """The averaged model."""
        return shared, None

    def corrected(self, state: None, flows: Tensor) -> None:
        """There are no flows."""
