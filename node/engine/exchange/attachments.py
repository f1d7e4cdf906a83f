"""Data that exchanges carry besides a difference: none, or the optimiser's memories (`starling.gossip.mix.memories`).

Shapes: D numbers of the shared vector, k of one exchange.
"""

from dataclasses import replace
from typing import NamedTuple, Protocol

from torch import Generator

from starling.gossip.api import Effect
from starling.gossip.compress.support import Support
from starling.gossip.mix import memories
from starling.gossip.mix.memories import MemoryExchange
from starling.node.engine.exchange.terms import Terms


class Carried(NamedTuple):
    """Data that a payload carries besides: the codes of a memory, and its age."""

    values: bytes
    age: float


class Attachments(Protocol):
    """Adds data besides a difference to payloads."""

    def split(self, payload: bytes) -> tuple[bytes, Carried]:
        """Split a payload into the difference's part and the attached data. Raises ValueError with a snake_case reason."""

    def ask(self, payload: bytes, support: Support, chance: Generator) -> bytes:
        """Initiator: add data to a request."""

    def answer(self, payload: bytes, carried: Carried, effect: Effect, chance: Generator) -> tuple[bytes, Effect]:
        """Responder: add data to a response -> the payload, and its whole effect. Raises ValueError with a snake_case reason."""

    def answered(self, carried: Carried, effect: Effect) -> Effect:
        """Initiator: return the whole effect of a response. Raises ValueError with a snake_case reason."""


class DifferencesOnly:
    """Adds nothing to payloads."""

    def split(self, payload: bytes) -> tuple[bytes, Carried]:
        return payload, Carried(b"", 0.0)

    def ask(self, payload: bytes, support: Support, chance: Generator) -> bytes:
        return payload

    def answer(self, payload: bytes, carried: Carried, effect: Effect, chance: Generator) -> tuple[bytes, Effect]:
        return payload, effect

    def answered(self, carried: Carried, effect: Effect) -> Effect:
        return effect


class Memories:
    """The memories of both ends."""

    def __init__(self, own: MemoryExchange, terms: Terms) -> None:
        self._own, self._dim = own, terms.form.dim

    def split(self, payload: bytes) -> tuple[bytes, Carried]:
        """Split the codes of a memory from the part before them."""
        before, values, age = memories.split_memory(payload)
        return before, Carried(values, age)

    def ask(self, payload: bytes, support: Support, chance: Generator) -> bytes:
        """Add this node's memory."""
        return memories.joined(payload, self._own.told(support, chance))

    def answer(self, payload: bytes, carried: Carried, effect: Effect, chance: Generator) -> tuple[bytes, Effect]:
        """Add the difference of both memories, which is part of the effect."""
        requested = self._parsed(carried, effect.support)
        said, learned = self._own.answer(effect.support, effect.theta, requested, chance)
        return memories.joined(payload, said), replace(effect, memory=learned)

    def answered(self, carried: Carried, effect: Effect) -> Effect:
        """Return the effect on the model and on the memory."""
        said = self._parsed(carried, effect.support)
        return replace(effect, memory=self._own.answered(effect.support, effect.theta, said))

    def _parsed(self, carried: Carried, support: Support) -> memories.MemoryMessage:
        return self._own.parsed(*carried, support, self._dim)
