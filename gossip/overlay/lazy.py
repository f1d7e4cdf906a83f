"""The lazy form of an overlay: everybody moves half as far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starling.gossip.overlay.api import Overlay


@dataclass(frozen=True, slots=True)
class Lazy:
    """(I + W)/2 in every round: no eigenvalue of a symmetric W is negative any more, which exact diffusion and D2 need.

    Costs half the speed: the spectral gap of (I + W)/2 is half of 1 − λ₂, and no finite-time exactness is left.
    Source: Yuan et al. 2019, "Exact Diffusion for Distributed Optimization and Learning" (arXiv:1702.05122).

    Args:
        overlay: W.
    """

    overlay: Overlay

    @property
    def symmetric(self) -> bool:
        """As W is."""
        return self.overlay.symmetric

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """W's, halved."""
        return {other: weight / 2.0 for other, weight in self.overlay.row(rank, n, round).items()}

    def period(self, n: int) -> int | None:
        """W's."""
        return self.overlay.period(n)
