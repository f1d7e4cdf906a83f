"""The engine's half of pulled exchanges: our vector encoded for all peers, and theirs, decoded, until Mix.

Shapes: D numbers of the shared vector, k peers asked.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from starling.gossip.compress import codec
from starling.gossip.compress.header import HEADER, Kind
from starling.gossip.compress.support import Full
from starling.gossip.errors import LocalProtocolError, RemoteProtocolError
from starling.gossip.exchange.attestation import digest
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.gather import message_seed
from starling.node.rpc.calls import Publish, Published, VerifyUpdate

LARGEST = 1e12  # largest number accepted in a vector: sums of squares of such stay finite in float32


class PullExchange:
    """Vectors sent and received by `node`, a round at a time; `form` (D,) has the dtype and the device of all."""

    def __init__(self, exchange_codec: ExchangeCodec, *, node: str, seed: int, form: Tensor) -> None:
        self._codec = exchange_codec
        self._node = node
        self._seed = seed
        self._dim, self._dtype, self._device = form.numel(), form.dtype, form.device
        self._received: dict[str, Tensor] = {}

    def publish(self, call: Publish, shared: Tensor) -> Published:
        """All of `shared` (D,), rounded reproducibly. Raises LocalProtocolError if our own numbers cannot be sent."""
        chance = torch.Generator().manual_seed(message_seed(self._seed, self._node, call.round))
        if not bool((shared.abs() <= LARGEST).all()):
            raise LocalProtocolError("our own numbers cannot be sent: not_finite or too_large")
        try:
            payload = self._codec.encode_message(shared, Full(), chance)
        except ValueError as error:
            raise LocalProtocolError(f"our own numbers cannot be sent: {error}") from error
        return Published(payload, digest(payload))

    def verify(self, call: VerifyUpdate) -> None:
        """Decode a peer's vector and keep it until Mix, the last of each. Raises RemoteProtocolError if it is not whole and usable."""
        if digest(call.payload) != call.digest:
            raise RemoteProtocolError(call.peer, "wrong_digest")
        try:
            self._received[call.peer] = self._vector(call.payload)
        except ValueError as error:
            raise RemoteProtocolError(call.peer, str(error)) from error

    def received(self, asked: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Vectors of `asked`, (k, D) in order of peer id with zeros where none came, and whether one came, (k,) bool."""
        received = torch.zeros(len(asked), self._dim, dtype=self._dtype, device=self._device)
        present = torch.zeros(len(asked), dtype=torch.bool, device=self._device)
        for place, peer in enumerate(sorted(asked)):
            if peer in self._received:
                received[place], present[place] = self._received[peer], True
        return received, present

    def forget(self, peer: str) -> None:
        """The peer is gone or banned: delete its vector."""
        self._received.pop(peer, None)

    def forget_all(self) -> None:
        """Delete all vectors."""
        self._received.clear()

    def _vector(self, payload: bytes) -> Tensor:
        if len(payload) < HEADER.size or payload[1] != Kind.FULL:  # before anything else is paid for
            raise ValueError("not_whole")
        _, values = codec.decode(payload, self._dim, self._dtype, (self._codec.response,), device=self._device)
        if not bool((values.abs() <= LARGEST).all()):
            raise ValueError("too_large")
        return values.reshape(self._dim)
