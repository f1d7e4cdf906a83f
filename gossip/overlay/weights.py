"""Mixing weights of an edge from the degrees of its ends, and the lazy form of an overlay.

The diagonal of W is 1 minus the rest of the row.

    metropolis_hastings   1/(1 + the larger degree of the two): doubly stochastic; needs the neighbor's degree only
    max_degree            1/(1 + the largest degree of all): doubly stochastic; slow where degrees differ much
    uniform               1/(1 + own degree): rows sum to 1, columns do not; with pulled models the limit is a mean in which
                          well-connected nodes count more

Source: Xiao, Boyd and Lall 2005, "A Scheme for Robust Distributed Sensor Fusion Based on Average Consensus".
"""

from collections.abc import Mapping
from dataclasses import dataclass

from starling.gossip.bounds import WeightRule
from starling.gossip.overlay.api import Overlay


class DegreeWeighted:
    """An overlay whose field `weights` names a rule."""

    __slots__ = ()
    weights: WeightRule

    @property
    def symmetric(self) -> bool:
        """Unless weights are uniform."""
        return self.weights != "uniform"


def edge_weight(rule: str, mine: int, theirs: int, largest: int) -> float:
    """Mixing weight that a node of degree `mine` gives to a neighbor of degree `theirs`, where `largest` is the graph's largest."""
    match rule:
        case "metropolis_hastings":
            degree = max(mine, theirs)
        case "max_degree":
            degree = largest
        case _:
            degree = mine
    return 1.0 / (1 + degree)


@dataclass(frozen=True, slots=True)
class Lazy:
    """(I + W)/2 in every round: no negative eigenvalues if W is symmetric, as exact diffusion and D² require.

    The spectral gap of (I + W)/2 is half of 1 − λ₂, and finite-time exactness is lost.
    Source: Yuan et al. 2019, "Exact Diffusion for Distributed Optimization and Learning" (arXiv:1702.05122).
    """

    overlay: Overlay

    @property
    def symmetric(self) -> bool:
        return self.overlay.symmetric

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Return the weights of W, halved."""
        return {other: weight / 2.0 for other, weight in self.overlay.row(rank, n, round).items()}

    def period(self, n: int) -> int | None:
        return self.overlay.period(n)
