"""SybilWall: FoolsGold without a server. Peers are weighted by the similarity of their updates, also to gossiped histories.

Where an attacker has fewer edges than there are honest nodes, each of these pulls from one clone at most and has nothing to compare it
with. Gossiped records reveal the other clones; they are used in comparisons, never averaged. The own model always has weight 1, and the
own history is not compared.

Nodes do not exchange signed histories (`benchmarks.research.histories`). They use `starling.robust.rules.foolsgold`, which compares the
peers of a node with each other.

Shapes: d parameters, k peers pulled from, K subjects of records, s buckets; "…" are batch dimensions.

Source: Werthenbach and Pouwelse 2023 (arXiv:2306.15044).
"""

from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules import foolsgold


def weights(observed: Tensor, records: Tensor) -> Tensor:
    """Map (…, k, s) observed histories and (…, K, s) of records -> (…, k) float64 weights of the observed peers, in [0, 1].

    The own model has weight 1 beside them. K may be 0; an empty history is similar to none.
    """
    alike = foolsgold.similarity(torch.cat((observed, records.to(observed.dtype)), dim=-2))
    return foolsgold.weights(alike)[..., : observed.shape[-2]]


def combine(own: Tensor, received: Tensor, present: Tensor, alphas: Tensor) -> Tensor:
    """Return (x + Σ α_j z_j)/(1 + Σ α_j), row by row: x (…, d), z (…, k, d), finite, α (…, k) in [0, 1].

    A peer that is not `present` (…, k) counts as the own model.
    """
    counted = alphas.to(own.dtype)[..., None]
    difference = torch.where(present[..., None], received - own[..., None, :], 0.0)
    return own + (counted * difference).sum(dim=-2) / (1.0 + counted.sum(dim=-2))
