"""Encode messages that are swapped: drawn for each peer, or one for all.

Shapes: D numbers of the shared vector.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol

from torch import Tensor

from starling.gossip.mix.common_draw import RoundMessages
from starling.gossip.mix.kinds import EdgeKind
from starling.node.engine.exchange.terms import Terms
from starling.node.rpc.calls import Answer, Offer


class Encoding(Protocol):
    """Compresses messages and decodes those of peers."""

    def encode(self, call: Offer | Answer, message: Tensor, budget: int) -> bytes:
        """Return the payload of a message (D,) of at most `budget` bytes, 0: no limit. Raises ValueError: "not_finite"."""


class EachEdge:
    """Selector and quantizer draw for each edge and transaction."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def encode(self, call: Offer | Answer, message: Tensor, budget: int) -> bytes:
        """Return a payload for one peer."""
        terms = self._terms
        support = terms.select(budget, terms.form.dim).select(message, None, terms.mask_seed(call.peer, call.inc), call.seq)
        chance = terms.chance(call.peer, call.inc, call.seq, terms.node)
        return terms.codec.encode_message(message, support, chance)


class OneForAll:
    """Selector and quantizer draw for the sender and the round, so that equal messages are equal bytes, encoded once.

    No peer has a budget of its own: the least of those since the last round's first message counts for all.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._budgets: list[int] = []
        self._of = lru_cache(maxsize=1)(self._begun)

    def encode(self, call: Offer | Answer, message: Tensor, budget: int) -> bytes:
        """Return a payload; of an equal message of this round, the same one that other peers got."""
        self._budgets.append(budget)
        return self._of(call.round).encode(message)

    def _begun(self, number: int) -> RoundMessages:
        terms = self._terms
        selector = terms.select(min(filter(None, self._budgets), default=0), terms.form.dim)
        self._budgets.clear()
        return RoundMessages(terms.codec, selector, terms.seed, terms.node, number)


ENCODINGS: Mapping[EdgeKind, Callable[[Terms], Encoding]] = MappingProxyType(
    {EdgeKind.SWAPS: EachEdge, EdgeKind.COMMON: OneForAll, EdgeKind.CONTROLS: OneForAll}
)
"""Encodings by kind of exchange."""
