"""Exchanges that carry what optimisers remember beside a difference of models (`starling.gossip.mix.memories`).

Shapes: D numbers of the shared vector.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Generator, Tensor

from starling.gossip.api import Effect
from starling.gossip.compress.support import Support
from starling.gossip.mix import memories
from starling.gossip.mix.encoded_effects import EncodedEffect
from starling.gossip.mix.memories import MemoryExchange
from starling.node.engine.exchange.directions import Carried, Limits
from starling.node.engine.exchange.terms import Terms


class Memories:
    """The memories of both ends. Satisfies `starling.node.engine.exchange.directions.Besides`."""

    def __init__(self, own: MemoryExchange, terms: Terms) -> None:
        self._own, self._dim = own, terms.form.dim

    def split(self, payload: bytes) -> tuple[bytes, Carried]:
        """Part the codes of a memory from what is before them."""
        before, values, age = memories.parted(payload)
        return before, Carried(values, age)

    def ask(self, payload: bytes, peer: str, support: Support, theta: float, chance: Generator) -> tuple[bytes, Limits]:
        """Add our memory."""
        return memories.joined(payload, self._own.told(support, chance)), Limits()

    def answer(
        self, payload: bytes, carried: Carried, effect: Effect, chance: Generator, under_way: Sequence[Effect | EncodedEffect]
    ) -> tuple[bytes, Effect]:  # fmt: skip
        """Add the difference of both memories, which is part of the effect."""
        support = effect.support
        asked = self._parsed(carried, support)
        said, learned = self._own.answer(support, effect.theta, asked, chance)
        return memories.joined(payload, said), replace(effect, memory=learned)

    def answered(self, carried: Carried, effect: Effect, limits: Limits) -> Effect:
        """Return the effect on the model and on the memory."""
        said = self._parsed(carried, effect.support)
        return replace(effect, memory=self._own.answered(effect.support, effect.theta, said))

    def told(self, carried: Carried, support: Support) -> Tensor | None:
        """Return nothing: there are no directions."""
        return None

    def _parsed(self, carried: Carried, support: Support) -> memories.Told:
        return self._own.parsed(carried.values, carried.number, support, self._dim)
