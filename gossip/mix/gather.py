"""Pull and combine: every node asks some peers for their models and takes a robust combination of them.

Shapes: d parameters, s numbers that a rule remembers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from starling.gossip.api import Losses, Phase, Rule
from starling.gossip.errors import BreakdownExceeded
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.seeds import derive


@dataclass(frozen=True, slots=True)
class Gathered:
    """Args:
    origin: (…, d) the model before the local steps of this round.
    kept: (…, s) what the rule remembers.
    """

    origin: Tensor
    kept: Tensor


@dataclass(frozen=True, slots=True)
class Pulls:
    """Satisfies `starling.gossip.api.Gathering`."""

    rule: Rule


@dataclass(frozen=True, slots=True)
class Gather:
    """x_i <- R(z_i; z_j of the peers asked), with z the models after local steps. DSGD where R is the mean.

    There is no correction and nothing is kept of a link: what a liar tells counts for one round only.

    Source: pull-based epidemic learning, RPEL, arXiv:2506.05579 (2025).

    Args:
        rule: R.
    """

    rule: Rule
    asynchronous: ClassVar[bool] = False
    static: ClassVar[bool] = False

    @property
    def edge(self) -> Pulls:
        """The rule."""
        return Pulls(self.rule)

    def size(self, dim: int) -> int:
        """One vector: the model."""
        return dim

    def start(self, x: Tensor) -> Gathered:
        """Where the first round's local steps begin."""
        return Gathered(x.clone(), self.rule.start(x))

    def correct(self, state: Gathered, gradient: Tensor) -> tuple[Tensor, Gathered]:
        """The gradient itself."""
        return gradient, state

    def publish(self, state: Gathered, x: Tensor, phase: Phase) -> tuple[Tensor, Gathered]:
        """As it is."""
        return x, state

    def shared(self, state: Gathered, x: Tensor) -> Tensor:
        """The model."""
        return x

    def absorb(self, state: Gathered, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Gathered]:
        """What came out of `combine` is the model now."""
        return shared, Gathered(shared.clone(), state.kept)

    def combine(
        self,
        state: Gathered,
        shared: Tensor,
        told: Tensor,
        present: Tensor,
        losses: Losses | None = None,
        seats: Tensor | None = None,
    ) -> tuple[Tensor, Gathered, Tensor | None]:
        """The shared vector (…, D) after a round in which peers told (…, k, D), the new state, and (…, k) bool whom the rule held back, or
        None where it does not say. Comes before `absorb`. Seats (…, k) are as in `Rule.combine`.

        Where there are fewer peers than the rule needs, as after many have gone, nobody is listened to: a weaker rule would be none. Nor
        where what comes out is not finite.
        """
        try:
            combined, kept, held = self.rule.combine(state.kept, shared, told, present, state.origin, losses, seats)
        except BreakdownExceeded:
            return shared, state, None
        fine = torch.isfinite(combined).all(dim=-1, keepdim=True)
        if not bool(fine.all()):
            combined, kept = torch.where(fine, combined, shared), torch.where(fine, kept, state.kept)
        return combined, Gathered(state.origin, kept), held

    def corrected(self, state: Gathered, flows: Tensor) -> Gathered:
        """There are no flows."""
        return state


def told_by(seed: int, peer: str, round: int) -> int:
    """The seed that a node's message of a round is rounded by: whoever asks is told the same bytes.

    Args:
        seed: the swarm's.
        peer: who tells.
        round: >= 0.
    """
    return derive(seed, "told", peer, round)
