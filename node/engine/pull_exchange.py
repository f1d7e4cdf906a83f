"""The engine's half of pulled exchanges: our vector as it is told to whoever asks, and what peers told us until Mix.

Shapes: d parameters, D numbers of the shared vector, k peers asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from starling.gossip.compress import codec
from starling.gossip.compress.header import HEADER, Kind
from starling.gossip.compress.support import Full
from starling.gossip.errors import LocalProtocolError, RemoteProtocolError
from starling.gossip.exchange.attestation import digest
from starling.gossip.mix.exchange_codec import Terms
from starling.gossip.mix.gather import told_by
from starling.node.rpc.calls import Publish, Published, VerifyUpdate

LARGEST = 1e12
"""Number in a vector: no model has larger ones, and sums of their squares stay finite in float32."""


class Gathering:
    """What one node tells and is told, a round at a time.

    Args:
        terms: vectors go through `response`.
        node: our own label.
        seed: the swarm's.
        origin: (D,) a shared vector, of the dtype and on the device of all.
    """

    def __init__(self, terms: Terms, *, node: str, seed: int, origin: Tensor) -> None:
        self._terms = terms
        self._node = node
        self._seed = seed
        self._dim, self._dtype, self._device = origin.numel(), origin.dtype, origin.device
        self._received: dict[str, Tensor] = {}

    def publish(self, call: Publish, shared: Tensor) -> Published:
        """All of `shared` (D,), rounded by chance that the swarm knows, so that a round replays.

        Raises:
            LocalProtocolError: our own numbers cannot be sent.
        """
        chance = torch.Generator().manual_seed(told_by(self._seed, self._node, call.round))
        if not bool((shared.abs() <= LARGEST).all()):
            raise LocalProtocolError("our own numbers cannot be sent: not_finite or too_large")
        try:
            payload = self._terms.tell(shared, Full(), chance)
        except ValueError as error:
            raise LocalProtocolError(f"our own numbers cannot be sent: {error}") from error
        return Published(payload, digest(payload))

    def verify(self, call: VerifyUpdate) -> None:
        """Decode a peer's vector and keep it until Mix; a second one of the same peer replaces the first.

        Raises:
            RemoteProtocolError: the payload is not what its digest says, or not a whole vector of usable numbers; nothing changed.
        """
        if digest(call.payload) != call.digest:
            raise RemoteProtocolError(call.peer, "wrong_digest")
        try:
            self._received[call.peer] = self._vector(call.payload)
        except ValueError as error:
            raise RemoteProtocolError(call.peer, str(error)) from error

    def told(self, asked: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Vectors received from `asked`, (k, D) in order of peer id with zeros where none came, and whether one came, (k,) bool."""
        told = torch.zeros(len(asked), self._dim, dtype=self._dtype, device=self._device)
        present = torch.zeros(len(asked), dtype=torch.bool, device=self._device)
        for place, peer in enumerate(sorted(asked)):
            if peer in self._received:
                told[place], present[place] = self._received[peer], True
        return told, present

    def forget(self, peer: str) -> None:
        """The peer is gone or shut out: what it told this round counts no more."""
        self._received.pop(peer, None)

    def forget_all(self) -> None:
        """The round is void."""
        self._received.clear()

    def _vector(self, payload: bytes) -> Tensor:
        if len(payload) < HEADER.size or payload[1] != Kind.FULL:  # before anything else is paid for
            raise ValueError("not_whole")
        _, values = codec.decode(payload, self._dim, self._dtype, (self._terms.response,), device=self._device)
        if not bool((values.abs() <= LARGEST).all()):
            raise ValueError("too_large")
        return values.reshape(self._dim)
