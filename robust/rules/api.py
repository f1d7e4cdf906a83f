"""The protocols of rules and pre-aggregations, and `Composed`, which makes a `starling.gossip.api.Rule` of them.

Shapes: "…" rows (none for one node), R rows flattened, k peers, m = k + 1 vectors, p vectors after pre-aggregation, D numbers of the
shared vector, s numbers of state.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from starling.gossip.api import Combined, Losses
from starling.gossip.bounds import Byzantine, parameters
from starling.gossip.errors import BreakdownExceeded
from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.stack import Stack


@dataclass(frozen=True, slots=True)
class Context:
    """Inputs of a rule besides the vectors to combine."""

    state: Tensor  # (R, s) the rule's state
    own: Tensor  # (R, D) own vector, before any pre-aggregation
    before: Tensor  # (R, D) own vector before the local steps
    losses: Losses | None  # (R, m, D) -> (R, m), within one round on the same data; None where losses are not available
    slots: Tensor | None = None  # (R, k) int64 memory slots of present peers, -1 for none; None: in their order


class Combination(Protocol):
    """A rule: combines the vectors of a stack. May also be `Stateful` or `Remembering`."""

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """Return (R, D) combined vectors, (R, s) new state, and (R, p − 1) bool the peers clipped or excluded, or None.

        Raises BreakdownExceeded: too few vectors.
        """
        ...


@runtime_checkable
class Stateful(Protocol):
    """A rule or pre-aggregation with state between rounds."""

    def start(self, own: Tensor) -> Tensor:
        """Return (R, s), state before the first round, from own vectors (R, D)."""
        ...


@parameters
class Tolerant:
    """A rule or pre-aggregation that is set for some Byzantine vectors.

    Args:
        f: Byzantine vectors tolerated, >= 0.
    """

    f: Byzantine = 2


class OneNumber:
    """`Stateful`, with one number per row."""

    __slots__ = ()

    def start(self, own: Tensor) -> Tensor:
        """Return 0, the state before the first round."""
        return own.new_zeros((own.shape[0], 1))


@runtime_checkable
class Remembering(Protocol):
    """A rule with state per peer, see `starling.gossip.mix.rule_memory`."""

    @property
    def memory_slots(self) -> int:
        """Return the number of peers with state, >= 1."""
        ...


class Preparation(Protocol):
    """A pre-aggregation: a linear map of the vectors before a rule, which keeps our own first. May also be `Stateful`."""

    def prepare(self, stack: Stack, state: Tensor) -> tuple[Stack, Tensor]:
        """Return the mixed stack and (R, s) new state."""
        ...


@dataclass(frozen=True, slots=True)
class Composed:
    """A rule, after a pre-aggregation if given. Satisfies `starling.gossip.api.Rule`.

    A row without present peers keeps its own vector, bit by bit.
    """

    rule: Combination
    first: Preparation | None = None  # the pre-aggregation; None for rules with state per peer, as it mixes peers

    def __post_init__(self) -> None:
        if self.memory_slots and self.first is not None:
            raise ValueError("before: must be empty with a rule that remembers each peer, whose vectors must not be mixed first")

    @property
    def memory_slots(self) -> int:
        """Return the number of peers with state."""
        return self.rule.memory_slots if isinstance(self.rule, Remembering) else 0

    def start(self, own: Tensor) -> Tensor:
        """Return (…, s), state of the rule, then of the pre-aggregation."""
        flat = own.reshape(-1, own.shape[-1])
        state = torch.cat([_start(self.rule, flat), _start(self.first, flat)], dim=1)
        return state.view(*own.shape[:-1], state.shape[1])

    def combine(
        self,
        state: Tensor,
        own: Tensor,
        received: Tensor,
        present: Tensor,
        before: Tensor,
        losses: Losses | None,
        slots: Tensor | None = None,
    ) -> Combined:
        """Combine; after a pre-aggregation, which mixes peers, none is reported as clipped or excluded.

        Raises BreakdownExceeded: too few peers for the rule; ValueError: the rule needs losses and there are none.
        """
        leading, (peers, dim) = own.shape[:-1], received.shape[-2:]
        if not peers:
            return own.clone(), state, None
        rows = math.prod(leading)
        stack = Stack(own.reshape(rows, dim), received.reshape(rows, peers, dim), present.reshape(rows, peers))
        split = state.shape[-1] - _start(self.first, stack.own).shape[1]
        flat = state.reshape(rows, state.shape[-1])
        of_rule, of_first = flat[:, :split], flat[:, split:]
        prepared = stack
        if self.first is not None:
            prepared, of_first = self.first.prepare(stack, of_first)

        def flattened(models: Tensor) -> Tensor:
            assert losses is not None
            return losses(models.view(*leading, *models.shape[1:])).reshape(models.shape[:2])

        context = Context(
            of_rule,
            stack.own,
            before.reshape(rows, dim),
            None if losses is None else flattened,
            None if slots is None else slots.reshape(rows, peers),
        )
        combined, of_rule, excluded = self.rule.reduce(prepared, context)
        alone = ~stack.present.any(dim=1)
        if bool(alone.any()):
            combined = torch.where(alone[:, None], stack.own, combined)
        state = torch.cat([of_rule, of_first], dim=1)
        named = None if excluded is None or self.first is not None else (excluded & stack.present).view(present.shape)
        return combined.view(own.shape), state.view(*leading, state.shape[1]), named


def _start(part: object, own: Tensor) -> Tensor:
    return part.start(own) if isinstance(part, Stateful) else own.new_zeros((own.shape[0], 0))


def check_count(name: str, f: int, count: int, least: int) -> None:
    """Check that there are enough vectors. Raises BreakdownExceeded: fewer than `least`."""
    if count < least:
        raise BreakdownExceeded(f"{name}: f = {f} needs at least {least} vectors, our own included, got {count}")
