"""Common parts of exchanges that pull vectors: the received ones, until Mix.

Shapes: D numbers of the shared vector, k requested peers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from starling.gossip.errors import LocalProtocolError, RemoteProtocolError
from starling.gossip.exchange.attestation import digest
from starling.node.engine.exchange.api import Vectors
from starling.node.engine.exchange.terms import Form
from starling.node.rpc.calls import VerifyEarlier, VerifyUpdate

LARGEST = 1e12  # largest number accepted in a vector: sums of squares stay finite in float32


class Inbox:
    """The newest vector of each peer in a round, of the given `form`."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._received: dict[str, Tensor] = {}

    def put(self, peer: str, vector: Tensor) -> None:
        """Store a peer's vector (D,) on the model's device."""
        self._received[peer] = vector.to(self._form.device)

    def of(self, requested: Sequence[str]) -> dict[str, Tensor]:
        """Return the received vector (D,) of each of these peers that sent one, in order of peer id."""
        return {peer: self._received[peer] for peer in sorted(requested) if peer in self._received}

    def received(self, requested: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return (k, D) in order of peer id, zeros where none came, and which came, (k,) bool."""
        received = self._form.zeros(len(requested))
        present = torch.zeros(len(requested), dtype=torch.bool, device=self._form.device)
        for place, peer in enumerate(sorted(requested)):
            if peer in self._received:
                received[place], present[place] = self._received[peer], True
        return received, present

    def pop(self, peer: str) -> None:
        """Delete a peer's vector."""
        self._received.pop(peer, None)

    def clear(self) -> None:
        """Delete all stored vectors."""
        self._received.clear()


def check(vectors: Vectors, call: VerifyUpdate) -> None:
    """Raise LocalProtocolError if this is not the time for updates, RemoteProtocolError if this one is not what was attested."""
    if not vectors.ready:
        raise LocalProtocolError("updates are received between the end of Train and Mix")
    whole(call)


def whole(call: VerifyUpdate | VerifyEarlier) -> None:
    """Raise RemoteProtocolError if this is not what was attested."""
    if digest(call.payload) != call.digest:
        raise RemoteProtocolError(call.peer, "wrong_digest")


def bounded(values: Tensor) -> Tensor:
    """Raise ValueError("too_large") for numbers whose sums of squares might not be finite."""
    if not bool((values.abs() <= LARGEST).all()):
        raise ValueError("too_large")
    return values


def excluded(order: Sequence[str], bad: Tensor | None, requested: Sequence[str]) -> tuple[str, ...] | None:
    """Return the `requested` peers that are bad; `order` names those of `bad` (n,) bool, which is None if the rule does not say."""
    if bad is None:
        return None
    return tuple(peer for peer, out in zip(order, bad.tolist(), strict=True) if out and peer in requested)
