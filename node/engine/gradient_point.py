"""Gradients at a second point, or combined with the previous one: sharpness-aware, extragradient and optimistic steps.

All come before corrections, which are added to what is made here: so a flow moves by an exchange as ever, and nothing that is remembered
has to move along.

Shapes: d parameters; "…" is nothing for one node, and rows in a simulator.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from starling.node.config.schema import OptimizerSection

_TINY = 1e-12  # added to the norm, as a gradient of 0 has no direction


def has_second_gradient(section: OptimizerSection) -> bool:
    """Tell if a local step takes a second gradient."""
    return section.sam > 0.0 or section.gradient == "extragradient"


def point(section: OptimizerSection, x: Tensor, gradient: Tensor, correct: Callable[[Tensor], Tensor], lr: float | Tensor) -> Tensor:
    """Return the point of the second gradient, given the first at x (…, d).

    sam             x + ρ g/‖g‖              Foret et al. 2020 (arXiv:2010.01412); gossip, DFedSAM: Shi et al. 2023 (arXiv:2302.04083)
    extragradient   x − lr·correct(g)        Korpelevich 1976
    """
    if section.sam > 0.0:
        norm: Tensor = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
        return x + gradient * (section.sam / (norm + _TINY))
    return x - lr * correct(gradient)


def optimistic(gradient: Tensor, before: Tensor | None) -> Tensor:
    """Return 2g − (g before), Popov 1980; g where there is none before: None, or NaN in a row."""
    if before is None:
        return gradient
    return torch.where(before.isnan(), gradient, 2.0 * gradient - before)
