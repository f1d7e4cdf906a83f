"""The engine's half of pulled exchanges: our vector encoded for all peers, and theirs, decoded, until Mix.

Where nodes broadcast, a message is what `starling.gossip.mix.broadcast_codec` makes of the shared vector; else all of it.

Shapes: D numbers of the shared vector, k peers asked.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from starling.gossip.compress import codec
from starling.gossip.compress.header import HEADER, Kind
from starling.gossip.compress.support import Full
from starling.gossip.errors import LocalProtocolError, RemoteProtocolError
from starling.gossip.exchange.attestation import digest
from starling.gossip.mix.broadcast_codec import BroadcastCodec, anchor_digest
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.gather import message_seed
from starling.node.rpc.calls import Publish, Published, VerifyUpdate

LARGEST = 1e12  # largest number accepted in a vector: sums of squares of such stay finite in float32


class PullExchange:
    """Vectors sent and received by `node`, a round at a time; `form` (D,) has the dtype and the device of all.

    `broadcast`: how messages are made where nodes broadcast; None: they do not.
    """

    def __init__(
        self, exchange_codec: ExchangeCodec, *, node: str, seed: int, form: Tensor, broadcast: BroadcastCodec | None = None
    ) -> None:  # fmt: skip
        self._codec = exchange_codec
        self._broadcast = broadcast
        self._sent: Tensor | None = None  # our own message of the round, as decoded
        self._anchors: dict[str, bytes] = {}  # digests of the anchors from which received messages start
        self._node = node
        self._seed = seed
        self._dim, self._dtype, self._device = form.numel(), form.dtype, form.device
        self._received: dict[str, Tensor] = {}

    def publish(self, call: Publish, shared: Tensor, anchor: Tensor | None = None) -> Published:
        """All of `shared` (D,), rounded reproducibly, or its message from this `anchor` where nodes broadcast.

        Raises LocalProtocolError if our own numbers cannot be sent.
        """
        if self._broadcast is not None and anchor is not None:
            return self._message(self._broadcast, shared, anchor)
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
            if self._broadcast is not None:
                self._anchors[call.peer], vector = self._broadcast.decode(call.payload, self._dim, self._dtype)
                self._received[call.peer] = _bounded(vector).to(self._device)
            else:
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

    def messages(self, asked: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Where nodes broadcast: our own message as decoded (D,), 0 if none went out; those of all members, (n, D) in order of peer id, and
        whether there is one, (n,) bool.
        """
        order = sorted({*asked, self._node})
        received, present = self.received(order)
        sent = torch.zeros_like(received[0]) if self._sent is None else self._sent
        received[order.index(self._node)], present[order.index(self._node)] = sent, self._sent is not None
        return sent, received, present

    def parted(self, anchor: Tensor) -> tuple[str, ...]:
        """Those who began the round from the anchor that most did, two at least, if ours, `anchor`, is another; else nobody.

        Of anchors that equally many have the one whose digest is the least counts, so that not all give way.
        """
        ours = anchor_digest(anchor)
        counts = Counter([ours, *self._anchors.values()])
        common = min(counts, key=lambda found: (-counts[found], found))
        if common == ours or counts[common] < 2:
            return ()
        return tuple(sorted(peer for peer, found in self._anchors.items() if found == common))

    def forget(self, peer: str) -> None:
        """The peer is gone or banned: delete its vector."""
        self._received.pop(peer, None)
        self._anchors.pop(peer, None)

    def forget_all(self) -> None:
        """Delete all vectors."""
        self._received.clear()
        self._anchors.clear()
        self._sent = None

    def _message(self, broadcast: BroadcastCodec, shared: Tensor, anchor: Tensor) -> Published:
        try:
            payload = broadcast.encode(shared, anchor_digest(anchor))
            _, sent = broadcast.decode(payload, self._dim, self._dtype)
            self._sent = _bounded(sent).to(self._device)
        except ValueError as error:
            raise LocalProtocolError(f"our own numbers cannot be sent: {error}") from error
        return Published(payload, digest(payload), broadcast.longest(self._dim))

    def _vector(self, payload: bytes) -> Tensor:
        if len(payload) < HEADER.size or payload[1] != Kind.FULL:  # before anything else is paid for
            raise ValueError("not_whole")
        _, values = codec.decode(payload, self._dim, self._dtype, (self._codec.response,), device=self._device)
        return _bounded(values).reshape(self._dim)


def _bounded(values: Tensor) -> Tensor:
    """Raises ValueError("too_large") for numbers of which sums of squares might not be finite."""
    if not bool((values.abs() <= LARGEST).all()):
        raise ValueError("too_large")
    return values
