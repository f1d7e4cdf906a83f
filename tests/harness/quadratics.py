"""The problem on which optimisers, mixing and compression are compared: quadratic bowls with different minima.

    f_i(x) = ½ (x − b_i)ᵀ A_i (x − b_i),   A_i = Q_i diag(logspace(−log10 kappa, 0, d)) Q_iᵀ,   b_i = het · N(0, I) + one common N(0, I)

so L = 1 and mu = 1/kappa for each node, and no node's own minimum is the common one. All float64, with numpy's generators, whose streams
are guaranteed to stay the same.

Shapes: n nodes, d parameters.
"""

import math

import numpy as np
import torch
from torch import Tensor


def quadratics(n: int, d: int, seed: int = 0, kappa: float = 10.0, het: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return A (n, d, d), b (n, d), and the minimiser of the mean x* (d,)."""
    chance = np.random.default_rng(seed)
    b = het * chance.normal(size=(n, d)) + chance.normal(size=d)
    scales = np.logspace(-math.log10(kappa), 0, d)
    bases = [np.linalg.qr(chance.normal(size=(d, d)))[0] for _ in range(n)]
    A = np.stack([(basis * scales) @ basis.T for basis in bases])
    x_star = np.linalg.solve(A.sum(0), np.einsum("nij,nj->i", A, b))
    return torch.from_numpy(A), torch.from_numpy(b), torch.from_numpy(x_star)


def gradients(A: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Return the gradients of each node's own quadratic at x (…, n, d): (…, n, d), or at one point (d,) for all nodes."""
    return torch.einsum("nij,...nj->...ni", A, x - b)


def relative_error(x: Tensor, x_star: Tensor) -> float:
    """Return mean_i ‖x_i − x*‖² / ‖x*‖² for x: (n, d) or (d,)."""
    return float((x - x_star).square().sum(-1).mean() / x_star.square().sum())
