"""What some mixing algorithms have to know about an overlay before they can be used on it.

Shapes: n members; W (n, n) float64, W[i, j] is the weight i gives to what it receives from j.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from starling.gossip.overlay.weights import Matrix

D2_BOUND = -1.0 / 3.0
"""λ_min(W) must be above it for D². Tang et al. 2018 (arXiv:1803.07068). An even ring is at it, where nothing grows: it is taken, and
rounding must not decide."""

_EXACT = 1e-12


def check_static(W: Matrix, *, lazy: bool) -> None:
    """Whether exact diffusion (lazy) or D² can use this matrix, in every round.

    Args:
        W: rows sum to 1.
        lazy: (I + W)/2 is applied, whose eigenvalues are never below the bound.

    Raises:
        ValueError: W is not symmetric, or λ_min(W) < −1/3 where it matters; with the value and the source.
    """
    if np.abs(W - W.T).max() > _EXACT:
        raise ValueError(
            "needs a symmetric mixing matrix (Yuan et al. 2019, arXiv:1702.05122): this overlay is directed"
        )
    least = float(np.linalg.eigvalsh(W)[0])
    if not lazy and least < D2_BOUND - _EXACT:
        raise ValueError(
            f"d2 needs a mixing matrix with lambda_min > -1/3 (Tang et al. 2018, arXiv:1803.07068), this one has {least:.3f}; "
            "exact_diffusion takes it"
        )


def chi(rates: NDArray[np.float64]) -> tuple[float, float]:
    """χ1 and χ2 of A2CiD2, in units of the time that rates are per.

        Λ = Σ_{i<j} rate_ij (e_i − e_j)(e_i − e_j)ᵀ,   χ1 = 1/λ_2(Λ),   χ2 = ½ max_{ij} (e_i − e_j)ᵀ Λ⁺ (e_i − e_j)

    Args:
        rates: (n, n) symmetric, >= 0, n >= 2: exchanges with weight 1/2 between i and j per unit of time. Of an overlay
            and per round: twice the mean of W over a period. The diagonal is ignored.

    Raises:
        ValueError: the pairs that meet do not connect all.

    Source: Nabli, Belilovsky and Oyallon 2023 (arXiv:2306.08289).
    """
    between = rates - np.diag(np.diag(rates))
    laplacian = np.diag(between.sum(axis=1)) - between
    slowest = float(np.linalg.eigvalsh(laplacian)[1])
    if slowest <= _EXACT * float(between.max()):
        raise ValueError("the pairs that meet do not connect all members")
    inverse = np.linalg.pinv(laplacian, hermitian=True)
    diagonal = np.diag(inverse)
    resistance = np.add.outer(diagonal, diagonal) - 2.0 * inverse
    chi1 = 1.0 / slowest
    return chi1, min(chi1, 0.5 * float(resistance[between > 0.0].max()))
