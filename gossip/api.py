"""The shapes that algorithm parts fit into. Structural: nothing inherits from these.

Shapes: d parameters, k kept coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gossip.overlay.api import Overlay

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from gossip.compress.support import Support

__all__ = ["Effect", "Mixer", "Overlay", "Quantizer", "Selector"]


class Quantizer(Protocol):
    """Values to bytes and back, nothing else: no indices, no header."""

    @property
    def code(self) -> int:
        """Its number on the wire, never reused."""
        ...

    def encode(self, values: Tensor, generator: Generator) -> bytes:
        """(k,) finite -> canonical bytes."""
        ...

    def decode(self, data: bytes, count: int) -> Tensor:
        """Bytes -> (count,) finite. Raises ValueError unless `data` is exactly what encode could have made for `count` values."""
        ...

    def size(self, count: int) -> int:
        """Bytes that `count` values take."""
        ...


class Selector(Protocol):
    """Which coordinates an exchange is about."""

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """Args:
        x: (d,) the vector.
        reference: (d,) its values at the last exchange with this peer, or None.
        seed: of the edge's incarnation.
        turn: the transaction's number on the edge.
        """
        ...


@dataclass(frozen=True, slots=True)
class Effect:
    """What one committed exchange does to one end.

    Args:
        peer: the other end.
        support: coordinates of the shared vector it is about.
        value: (k,) signed difference v for this end: +v at the initiator, −v at the responder, the same bits.
        theta: mixing weight.
        gain: flow per unit of difference.
    """

    peer: str
    support: Support
    value: Tensor
    theta: float
    gain: float


class Mixer(Protocol):
    """A mixing algorithm as seen from one node: pure functions over an opaque state.

    `width` is how many d-vectors are exchanged side by side (1: the model; 2: model and tracker).
    """

    @property
    def width(self) -> int:
        """Vectors side by side, 1 or 2."""
        ...

    def start(self, x: Tensor) -> Any:
        """State for a model x (d,)."""
        ...

    def correct(self, state: Any, gradient: Tensor) -> tuple[Tensor, Any]:
        """The direction the local optimiser sees instead of `gradient` (d,), and the new state."""
        ...

    def shared(self, state: Any, x: Tensor) -> Tensor:
        """(width·d,) what exchanges are about."""
        ...

    def absorb(self, state: Any, x: Tensor, effects: Sequence[Effect]) -> tuple[Tensor, Any]:
        """Add committed effects, in the given order -> new x (d,), new state."""
        ...

    def settle(self, state: Any, peer: str) -> Any:
        """The edge to `peer` was closed in order."""
        ...

    def revoke(self, state: Any, peer: str, *, settled: bool) -> Any:
        """Delete what `peer` contributed to the correction."""
        ...

    def gain(self, theta: float, ratio: float, local_steps: float, lr: float) -> float:
        """Flow per unit of difference for a link of weight theta, support share `ratio`, K local steps at rate lr."""
        ...
