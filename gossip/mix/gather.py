"""Pull and combine: every node asks some peers for their models and takes a robust combination of them.

Shapes: d parameters, s numbers that a rule remembers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starling.gossip.api import Losses, Phase, Rule
from starling.gossip.errors import BreakdownExceeded, ConfigError
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.base import MixerBase
from starling.gossip.seeds import derive


@dataclass(frozen=True, slots=True)
class Gathered:
    """State of a node between rounds."""

    origin: Tensor  # (…, d) the model before the local steps of this round
    kept: Tensor  # (…, s) what the rule remembers


@dataclass(frozen=True, slots=True)
class Gather(MixerBase):
    """x_i <- R(z_i; z_j of the peers asked), with z the models after local steps. DSGD where R is the mean.

    No correction and no state per edge: a Byzantine vector counts for one round only.

    Source: pull-based epidemic learning, RPEL, arXiv:2506.05579 (2025).

    Args:
        rule: R.
    """

    rule: Rule

    @staticmethod
    def check(agreed: Any) -> list[str]:
        """Check rules for the manifest; return warnings."""
        overlay, select = agreed.overlay, agreed.compress.select
        if overlay.kind == "sticky":
            raise ConfigError(
                "overlay.kind: gather asks the neighbors of a round, and sticky edges have no rounds; try `--set overlay=pull`"
            )
        if overlay.average_every:
            raise ConfigError(
                f"overlay.average_every: an exact average has no defense, must be 0 with mix=gather, got {overlay.average_every}; "
                "try `--set overlay.average_every=0`"
            )
        if select != "full":
            raise ConfigError(
                f"compress.select: gather combines whole models, must be full, got {select}; try `--set compress.select=full`"
            )
        return []

    @property
    def edge(self) -> Gather:
        """Itself. Satisfies `starling.gossip.api.Gathering`."""
        return self

    def start(self, x: Tensor) -> Gathered:
        """Return the state before the first round's local steps."""
        return Gathered(x.clone(), self.rule.start(x))

    def absorb(self, state: Gathered, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Gathered]:
        """Replace the model by the result of `combine`."""
        return shared, Gathered(shared.clone(), state.kept)

    def combine(
        self, state: Gathered, shared: Tensor, received: Tensor, present: Tensor, losses: Losses | None = None, slots: Tensor | None = None
    ) -> tuple[Tensor, Gathered, Tensor | None]:
        """Return the shared vector (…, D) combined with those `received` (…, k, D), the new state, and (…, k) bool: clipped or
        excluded, or None where the rule does not say. Comes before `absorb`; arguments as in `Rule.combine`.

        With fewer peers than the rule needs, or a result that is not finite, the own vector stays: a weaker rule would not protect it.
        """
        try:
            combined, kept, held = self.rule.combine(state.kept, shared, received, present, state.origin, losses, slots)
        except BreakdownExceeded:
            return shared, state, None
        is_finite = torch.isfinite(combined).all(dim=-1, keepdim=True)
        if not bool(is_finite.all()):
            combined, kept = torch.where(is_finite, combined, shared), torch.where(is_finite, kept, state.kept)
        return combined, Gathered(state.origin, kept), held


def message_seed(seed: int, peer: str, round: int) -> int:
    """Seed of the rounding of the message of `peer` in one round of a swarm of this seed: all peers that ask receive the same bytes."""
    return derive(seed, "told", peer, round)
