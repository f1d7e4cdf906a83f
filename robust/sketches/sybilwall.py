"""SybilWall: FoolsGold without a server. A node weighs the peers it asks by how alike they moved, also to those it only heard of.

Where an attacker has fewer edges than there are honest nodes, each of these meets one clone at most, and alone sees nothing to compare it
with. The records that peers send along show it the other clones. They are compared with, never averaged. A node's own model always
counts 1, and its own history is in no comparison: it trusts itself, and may be like its peers.

For research: no node sends records along. What nodes can choose is `starling.robust.rules.foolsgold`.

Shapes: d parameters, k peers asked, K heard of, s buckets; "…" are rows.

Source: Werthenbach and Pouwelse 2023 (arXiv:2306.15044).
"""

from __future__ import annotations

import torch
from torch import Tensor

from starling.robust.sketches import foolsgold


def weights(observed: Tensor, heard: Tensor) -> Tensor:
    """(…, k, s) histories of the peers asked and (…, K, s) of others -> (…, k) float64, weights of their models in [0, 1].

    Our own model counts 1 beside them. K may be 0; an empty history is like nobody's.
    """
    alike = foolsgold.similarity(torch.cat((observed, heard.to(observed.dtype)), dim=-2))
    return foolsgold.weights(alike)[..., : observed.shape[-2]]


def combine(own: Tensor, told: Tensor, present: Tensor, alphas: Tensor) -> Tensor:
    """(x + Σ α_j z_j)/(1 + Σ α_j), row by row.

    Args:
        own: (…, d) x.
        told: (…, k, d) z; finite, of no meaning where absent.
        present: (…, k) bool; who is absent counts as our own model.
        alphas: (…, k) in [0, 1].
    """
    counted = alphas.to(own.dtype)[..., None]
    apart = torch.where(present[..., None], told - own[..., None, :], 0.0)
    return own + (counted * apart).sum(dim=-2) / (1.0 + counted.sum(dim=-2))
