"""FoolsGold: peers whose summed updates are similar to another peer's lose weight. Clones move alike; honest nodes with other data do not.

It ignores norms and losses: a single attacker passes, and so do Sybils that each train on poisoned data of their own. An attacker that
copies an honest peer takes that peer's weight along with its own. So it detects clones, and is no defense by itself.

Shapes: R rows, k peers, D numbers of a vector, K histories of s numbers, M slots; "…" are batch dimensions.

Source: Fung, Yoon and Beschastnikh 2018, "Mitigating Sybils in Federated Learning Poisoning" (arXiv:1808.04866), Algorithm 1, with
confidence κ = 1 and all features; that a node trusts itself, Werthenbach and Pouwelse 2023 (arXiv:2306.15044). As in the authors' code
negative cosines count as 0. Where all are exact clones all weights are 0, which Algorithm 1 leaves undefined. Deviation: slots.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from starling.gossip.api import Combined
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.api import Context
from starling.robust.rules.distances import HALF
from starling.robust.rules.stack import Stack
from starling.robust.sketches import BUCKETS, difference, sketch

MAX_HISTORIES = 64  # largest number of compared peers
_EPSILON = 1e-5  # value of the authors' code: keeps quotients of similarities finite
_MOST = 0.99  # value of the authors' code: bounds the logit of the largest weight
_LEAST = 1e-6  # α of rows that differ by no more than rounding: cosines of equal rows are 1 within 1e-15


@dataclass(frozen=True, slots=True)
class FoolsGold:
    """(x + Σ α_j x_j)/(1 + Σ α_j), with α_j near 0 for peers whose summed updates point in the direction of another peer's.

    The state is MAX_HISTORIES histories of s = min(D, BUCKETS) numbers, each the sum of a peer's updates (received vector minus own
    vector before the local steps), as sketches if D > BUCKETS. All histories are compared, also those of absent peers. The own weight
    is 1 and the own updates are not compared. An absent peer counts as the own vector with weight 1, a peer without a slot has weight 0.

    Args:
        seed: of the sketches; an attacker that knows it can make clones look slightly different.
    """

    seed: int = 0
    memory_slots: ClassVar[int] = MAX_HISTORIES

    @staticmethod
    def check(_agreed: Any) -> list[str]:
        """Return warnings for the manifest."""
        return ["robust.rule: foolsgold finds clones alone, any other attack ruins the model; `--set robust.rule=cs_nnm`"]

    def start(self, own: Tensor) -> Tensor:
        return own.new_zeros((own.shape[0], MAX_HISTORIES * min(own.shape[1], BUCKETS)))

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """Combine; peers of weight below 1/2 count as excluded."""
        state = context.state.clone()
        histories = state.view(len(state), MAX_HISTORIES, -1)
        alphas = torch.ones(stack.present.shape, dtype=torch.float64, device=state.device)
        for row, present in enumerate(stack.present):
            peers = present.nonzero().flatten()
            slots = peers if context.slots is None else context.slots[row, peers]
            assigned = (slots >= 0) & (slots < MAX_HISTORIES)
            alphas[row, peers[~assigned]] = 0.0
            peers, slots = peers[assigned], slots[assigned]
            received, before = stack.received[row, peers], context.before[row]
            sketched = before.numel() > BUCKETS
            steps = sketch(received, self.seed, origin=before) if sketched else difference(received, before)
            histories[row, slots] += steps.to(state.dtype)
            known = histories[row].any(dim=1)
            of_slots = torch.ones(MAX_HISTORIES, dtype=torch.float64, device=state.device)
            of_slots[known] = weights(similarity(histories[row, known]))
            alphas[row, peers] = of_slots[slots]
        others = alphas / (1.0 + alphas.sum(dim=1, keepdim=True))
        mixing = torch.cat([1.0 - others.sum(dim=1, keepdim=True), others], dim=1)
        return stack.combination(mixing), state, alphas < HALF


def similarity(histories: Tensor) -> Tensor:
    """Map (…, K, s) finite -> (…, K, K) float64 cosines, clamped at 0; 0 on the diagonal and for an empty history."""
    wide = histories.double()
    largest = wide.abs().amax(dim=-1, keepdim=True)
    wide = wide / torch.where(largest > 0, largest, 1.0)  # squares in float64 may overflow; squares of the scaled values do not
    norms = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    unit = wide / torch.where(norms > 0, norms, 1.0)
    alike = (unit @ unit.transpose(-1, -2)).clamp(0.0, 1.0)
    return alike * (1.0 - torch.eye(alike.shape[-1], dtype=alike.dtype, device=alike.device))


def weights(alike: Tensor) -> Tensor:
    """Map (…, K, K) similarities in [0, 1], 0 on the diagonal -> (…, K) weights in [0, 1], one of which is 1 unless all are 0.

    v_i = max_j cs_ij;  cs_ij <- cs_ij · v_i/v_j where v_i < v_j;  α_i = 1 − max_j cs_ij, divided by the largest;
    then ln(α_i/(1 − α_i)) + 1/2, clamped to [0, 1].
    """
    if alike.shape[-1] == 0:
        return alike.new_zeros(alike.shape[:-1])
    most = alike.amax(dim=-1) + _EPSILON
    pardon = (most[..., :, None] / most[..., None, :]).clamp(max=1.0)
    alpha = (1.0 - (alike * pardon).amax(dim=-1)).clamp(0.0, 1.0)
    alpha = torch.where(alpha < _LEAST, 0.0, alpha)  # otherwise the division below would give a rounding error full weight
    largest = alpha.amax(dim=-1, keepdim=True)
    alpha = (alpha / torch.where(largest > 0, largest, 1.0)).clamp(max=_MOST)
    return (torch.log(alpha / (1.0 - alpha)) + 0.5).clamp(0.0, 1.0)
