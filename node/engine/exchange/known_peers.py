"""A node's estimates of its peers' vectors, for selectors that compare with them.

Shapes: D numbers of the shared vector, k of one exchange.
"""

import math
from typing import Protocol

from torch import Tensor

from starling.gossip.api import Effect
from starling.gossip.compress.support import Support
from starling.gossip.mix.encoded_effects import EncodedEffect, decoded
from starling.gossip.replica import Replica


class Known(Protocol):
    """Estimates of peers' vectors from exchanges."""

    def of(self, peer: str) -> Tensor | None:
        """Return (D,) the estimate of a peer's vector; None: the selector does not compare."""

    def remembered(self, support: Support, shared: Tensor) -> Tensor:
        """Return the numbers of `shared` (D,), on the support of an exchange, that `note` needs."""

    def note(self, done: Effect | EncodedEffect, mine: Tensor) -> None:
        """Update from a committed exchange; `mine` is the result of `remembered`."""

    def share_of_norm(self, support: Support, dim: int) -> float:
        """Return by what to divide the norm of values exchanged to estimate that of all `dim`, in (0, 1]."""

    def pop(self, peer: str, _default: None = None) -> object:
        """Delete the values of a peer."""

    def clear(self) -> None:
        """Delete the values of all peers."""


class NothingKnown:
    """No estimates, for selectors that do not compare."""

    def of(self, peer: str) -> Tensor | None:
        return None

    def remembered(self, support: Support, shared: Tensor) -> Tensor:
        return shared[:0]

    def note(self, done: Effect | EncodedEffect, mine: Tensor) -> None: ...

    def share_of_norm(self, support: Support, dim: int) -> float:
        return math.sqrt(support.ratio(dim))

    def pop(self, peer: str, _default: None = None) -> object:
        return None

    def clear(self) -> None: ...


class LastKnown:
    """One estimate per peer after the first exchange with it, starting from the common initial vector."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._known: dict[str, Tensor] = {}

    def share_of_norm(self, support: Support, dim: int) -> float:
        """Return 1: coordinates that differ most have most of the norm."""
        return 1.0

    def of(self, peer: str) -> Tensor:
        """Return (D,) the estimate of a peer's vector."""
        known = self._known.get(peer)
        return self._replica.origin if known is None else known

    def remembered(self, support: Support, shared: Tensor) -> Tensor:
        """Return our values (k,) on the support."""
        return support.take(shared)

    def note(self, done: Effect | EncodedEffect, mine: Tensor) -> None:
        """Store the peer's values (k,) after an exchange: ours before it, and the difference less the peer's step towards ours."""
        values = mine + (1.0 - done.theta) * decoded(done).value
        self._known[done.peer] = done.support.put(self.of(done.peer), values)

    def pop(self, peer: str, _default: None = None) -> object:
        return self._known.pop(peer, None)

    def clear(self) -> None:
        self._known.clear()
