"""Exchanges that average and leave nothing behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from starling.gossip.api import Phase
from starling.gossip.lazy_torch import Tensor


@dataclass(frozen=True, slots=True)
class Plain:
    """x_i + θ·v and x_j − θ·v: no flows. Satisfies `starling.gossip.api.Averaging`."""

    static: ClassVar[bool] = False

    def size(self, shared: int) -> int:
        """Nothing is kept."""
        return 0

    def gain(self, theta: float, ratio: float, phase: Phase) -> float:
        """No flows."""
        return 0.0

    def flow(self, kept: Tensor, moved: Tensor) -> Tensor:
        """Stays as it is."""
        return kept
