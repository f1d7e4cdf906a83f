"""Plain decentralised SGD: average with neighbors, no correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gossip.api import Effect


@dataclass(frozen=True, slots=True)
class Dsgd:
    """DSGD, adapt then combine: x_i <- Σ_j w_ij (x_j after its local steps).

    With links of equal weight both ways the mean model follows the mean gradient exactly. Where data differ between nodes the
    models stay at a distance of order lr·ζ/(1 − ρ) from the optimum, which is what `Pet` removes.

    Source: Lian et al. 2017 (arXiv:1705.09056); pairwise and asynchronous: Lian et al. 2018 (arXiv:1710.06952).
    """

    @property
    def width(self) -> int:
        """One vector: the model."""
        return 1

    def start(self, x: Tensor) -> None:
        """There is no state."""

    def correct(self, state: None, gradient: Tensor) -> tuple[Tensor, None]:
        """The gradient itself."""
        return gradient, None

    def shared(self, state: None, x: Tensor) -> Tensor:
        """The model itself."""
        return x

    def absorb(self, state: None, x: Tensor, effects: Sequence[Effect]) -> tuple[Tensor, None]:
        """x[S] += θ·v for each effect in turn."""
        x = x.clone()
        for effect in effects:
            x[effect.support.index(x.numel())] += effect.theta * effect.value
        return x, None

    def settle(self, state: None, peer: str) -> None:
        """Nothing to keep."""

    def revoke(self, state: None, peer: str, *, settled: bool) -> None:
        """Nothing to delete."""

    def gain(self, theta: float, ratio: float, local_steps: float, lr: float) -> float:
        """No flows."""
        return 0.0
