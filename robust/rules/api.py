"""The shape of a rule here, and what makes one that a node can use.

Shapes: "…" rows (nothing for one node), R rows flattened, k peers, m = k + 1, D numbers of the shared vector, s remembered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from starling.gossip.api import Combined, Losses
from starling.gossip.errors import BreakdownExceeded
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.stack import Stack


@dataclass(frozen=True, slots=True)
class Context:
    """What a node knows besides the vectors to combine.

    Args:
        kept: (R, s) what the rule remembers.
        own: (R, D) our vector, unmixed.
        before: (R, D) our vector before the local steps.
        losses: (R, m, D) -> (R, m); within one round always on the same data. None where that cannot be known.
        seats: (R, k) int64 where those who are present sit, -1 for those who stand; None: in their order, as many as there are.
    """

    kept: Tensor
    own: Tensor
    before: Tensor
    losses: Losses | None
    seats: Tensor | None = None


class Combination(Protocol):
    """How the vectors of a stack become one."""

    def tolerates(self, k: int) -> int:
        """Bad ones among k peers with which a result is still bounded by what honest ones say, or by a threshold of our own."""
        ...

    def start(self, own: Tensor) -> Tensor:
        """(R, s) what is remembered before the first round."""
        ...

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D) the combined vector, (R, s) what is remembered, and (R, p − 1) bool who was held back, or None.

        Raises:
            BreakdownExceeded: there are too few vectors for the rule to mean anything.
        """
        ...


@runtime_checkable
class Remembering(Protocol):
    """A combination that remembers peers one by one, as `starling.gossip.mix.rule_memory` says."""

    @property
    def seats(self) -> int:
        """How many, >= 1."""
        ...


class Preparation(Protocol):
    """What is done to the vectors before a rule: a linear mixing. Our own stays the first."""

    def tolerates(self, rule: Combination, k: int) -> int:
        """Bad ones among k peers that the rule stands after this."""
        ...

    def start(self, own: Tensor) -> Tensor:
        """(R, s) what is remembered before the first round."""
        ...

    def prepare(self, stack: Stack, kept: Tensor) -> tuple[Stack, Tensor]:
        """The stack mixed, and (R, s) what is remembered."""
        ...


@dataclass(frozen=True, slots=True)
class Composed:
    """A rule for a node, prepared or not. Satisfies `starling.gossip.api.Rule`.

    A row in which nobody is present keeps its own vector, to the bit.

    Args:
        rule: how.
        first: what comes before it. Whoever mixes vectors leaves nobody to remember.
    """

    rule: Combination
    first: Preparation | None = None

    def __post_init__(self) -> None:
        if self.seats and self.first is not None:
            raise ValueError(
                "before: must be empty with a rule that remembers each peer, whose vectors must not be mixed first"
            )

    @property
    def seats(self) -> int:
        """Peers that the rule remembers one by one."""
        return self.rule.seats if isinstance(self.rule, Remembering) else 0

    def tolerates(self, k: int) -> int:
        """Bad ones among k peers with which a result is still bounded by what honest ones say, or by a threshold of our own."""
        return self.rule.tolerates(k) if self.first is None else self.first.tolerates(self.rule, k)

    def start(self, own: Tensor) -> Tensor:
        """(…, s) what the rule remembers, then what the preparation does."""
        flat = own.reshape(-1, own.shape[-1])
        kept = self.rule.start(flat)
        if self.first is not None:
            kept = torch.cat([kept, self.first.start(flat)], dim=1)
        return kept.view(*own.shape[:-1], kept.shape[1])

    def combine(
        self,
        kept: Tensor,
        own: Tensor,
        told: Tensor,
        present: Tensor,
        before: Tensor,
        losses: Losses | None,
        seats: Tensor | None = None,
    ) -> Combined:
        """As `starling.gossip.api.Rule` says. After a preparation, which mixes what peers said, nobody is named as held back.

        Raises:
            BreakdownExceeded: there are too few peers for the rule to mean anything.
            ValueError: it needs losses and there are none.
        """
        leading, (peers, dim) = own.shape[:-1], told.shape[-2:]
        if not peers:
            return own.clone(), kept, None
        rows = math.prod(leading)
        stack = Stack(own.reshape(rows, dim), told.reshape(rows, peers, dim), present.reshape(rows, peers))
        memory = kept.reshape(rows, kept.shape[-1])
        prepared, rest = stack, memory[:, :0]
        if self.first is not None:
            split = memory.shape[1] - self.first.start(stack.own).shape[1]
            memory, rest = memory[:, :split], memory[:, split:]
            prepared, rest = self.first.prepare(stack, rest)

        def flattened(models: Tensor) -> Tensor:
            assert losses is not None
            return losses(models.view(*leading, *models.shape[1:])).reshape(models.shape[:2])

        context = Context(
            memory, stack.own, before.reshape(rows, dim), None if losses is None else flattened,
            None if seats is None else seats.reshape(rows, peers),
        )  # fmt: skip
        combined, memory, held = self.rule.reduce(prepared, context)
        alone = ~stack.present.any(dim=1)
        if bool(alone.any()):
            combined = torch.where(alone[:, None], stack.own, combined)
        remembered = torch.cat([memory, rest], dim=1)
        if held is not None:
            held = None if self.first is not None else (held & stack.present).view(present.shape)
        return combined.view(own.shape), remembered.view(*leading, remembered.shape[1]), held


def nothing(own: Tensor) -> Tensor:
    """(R, 0): a rule without memory."""
    return own.new_zeros((own.shape[0], 0))


def bad(name: str, b: int) -> None:
    """Check the number of bad ones that a rule is set for.

    Raises:
        ValueError: it is negative.
    """
    if b < 0:
        raise ValueError(f"{name}: b must be >= 0, got {b}")


def enough(name: str, b: int, count: int, least: int) -> None:
    """Check that there are vectors enough.

    Raises:
        BreakdownExceeded: fewer than `least`.
    """
    if count < least:
        raise BreakdownExceeded(f"{name}: b = {b} needs at least {least} vectors, our own included, got {count}")
