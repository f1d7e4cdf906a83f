"""Whether an outer optimiser holds together where neighbors, not everybody, are averaged. Torch-free: the daemon asks as well.

Disagreement of anchors without gradients, over uniformly random pairs of many nodes: with z_i = (φ_i, m_i) and a partner j

    push = −(g/2)·(φ_i − φ_j);   m' = a·m + push;   φ' = φ + m', or φ + push + a·m' with nesterov

so z_i' = P·z_i + q·φ_j and the covariance of independent, equally distributed nodes becomes P·C·Pᵀ + q·qᵀ·C_φφ. The factor is the
spectral radius of that map. Own calculation; heavy-ball values agree with the ranges measured for NoLoCo (arXiv:2506.10911).
"""

from __future__ import annotations

import numpy as np


def disagreement_factor(momentum: float, pull: float, *, nesterov: bool = False) -> float:
    """What one round of pairwise outer steps multiplies the variance of anchors by, in the long run; below 1 they come together.

    Args:
        momentum: a, in [0, 1).
        pull: g, >= 0.
        nesterov: look ahead.
    """
    a, half = momentum, pull / 2.0
    m = np.array([-half, a])  # m' as a combination of (φ, m); + half · φ_j
    push = np.array([-half, 0.0])
    phi = np.array([1.0, 0.0]) + (push + a * m if nesterov else m)
    step = np.array([phi, m])
    partner = np.array([half + a * half if nesterov else half, half])
    covariance = np.kron(step, step)
    covariance[:, 0] += np.kron(partner, partner)
    return float(np.abs(np.linalg.eigvals(covariance)).max())
