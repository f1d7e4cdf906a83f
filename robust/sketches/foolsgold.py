"""FoolsGold: peers whose updates are similar to each other lose weight. Clones move alike; honest nodes with data of their own do not.

It ignores norms and losses: a single attacker passes, and so do Sybils that each train on poisoned data of their own. An attacker that
copies an honest peer takes that peer's weight along with its own. So it detects clones, and is no defense by itself.

Shapes: K histories of s numbers; "…" are batch dimensions.

Source: Fung, Yoon and Beschastnikh 2018, "Mitigating Sybils in Federated Learning Poisoning" (arXiv:1808.04866), Algorithm 1, with
confidence κ = 1 and all features. As in the authors' code negative cosines count as 0. Where all are exact clones all weights are 0,
which Algorithm 1 leaves undefined.
"""

from __future__ import annotations

from starling.gossip.lazy_torch import Tensor, torch

_EPSILON = 1e-5  # of the authors' code: keeps quotients of similarities finite
_MOST = 0.99  # of the authors' code: bounds the logit of the largest weight
_LEAST = 1e-6  # α of rows that differ by no more than rounding: cosines of equal rows are 1 within 1e-15


def similarity(histories: Tensor) -> Tensor:
    """(…, K, s) finite -> (…, K, K) float64 cosines, clamped at 0; 0 on the diagonal and for an empty history."""
    wide = histories.double()
    largest = wide.abs().amax(dim=-1, keepdim=True)
    wide = wide / torch.where(largest > 0, largest, 1.0)  # squares of float64 may overflow; those of this do not
    norms = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    unit = wide / torch.where(norms > 0, norms, 1.0)
    alike = (unit @ unit.transpose(-1, -2)).clamp(0.0, 1.0)
    return alike * (1.0 - torch.eye(alike.shape[-1], dtype=alike.dtype, device=alike.device))


def weights(alike: Tensor) -> Tensor:
    """(…, K, K) similarities in [0, 1], 0 on the diagonal -> (…, K) weights in [0, 1], one of which is 1 unless all are 0.

    v_i = max_j cs_ij;  cs_ij <- cs_ij · v_i/v_j where v_i < v_j;  α_i = 1 − max_j cs_ij, divided by the largest;
    then ln(α_i/(1 − α_i)) + 1/2, clamped to [0, 1].
    """
    if alike.shape[-1] == 0:
        return alike.new_zeros(alike.shape[:-1])
    most = alike.amax(dim=-1) + _EPSILON
    pardon = (most[..., :, None] / most[..., None, :]).clamp(max=1.0)
    alpha = (1.0 - (alike * pardon).amax(dim=-1)).clamp(0.0, 1.0)
    alpha = torch.where(
        alpha < _LEAST, 0.0, alpha
    )  # else the division below would make a rounding error the full weight
    largest = alpha.amax(dim=-1, keepdim=True)
    alpha = (alpha / torch.where(largest > 0, largest, 1.0)).clamp(max=_MOST)
    return (torch.log(alpha / (1.0 - alpha)) + 0.5).clamp(0.0, 1.0)
