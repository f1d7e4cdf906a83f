"""Broadcast messages: the digest of the sender's outer parameters, and the largest coordinates of its change.

    message    digest of an anchor (8 bytes) · payload as `starling.gossip.compress.codec.encode` writes it

The anchor is the sender's newest that no message changes any more: messages are added to the sums of the last rounds still.
Equal anchors have equal digests. A message is the same for all who receive it: selector and quantizer draw nothing.

Shapes: d parameters, k kept coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

from starling.gossip.api import Quantizer, Selector
from starling.gossip.compress import codec, rice
from starling.gossip.compress.header import HEADER, LISTING, Kind
from starling.gossip.compress.support import Full
from starling.gossip.lazy_torch import Tensor, torch

ANCHOR_BYTES = 8


@dataclass(frozen=True, slots=True)
class BroadcastCodec:
    """The swarm's codec of every message."""

    selector: Selector
    quantizer: Quantizer
    _counts: dict[int, int] = field(init=False, compare=False, default_factory=dict)  # counts by d, once computed

    def encode(self, vector: Tensor, anchor: bytes) -> bytes:
        """Return the message of `vector` (d,) from a node whose outer parameters have this digest. Raises ValueError: "not_finite"."""
        support = self.selector.select(vector, None, 0, 0)
        return anchor + codec.encode_from(vector, support, self.quantizer, torch.Generator())

    def decode(self, message: bytes, dim: int, dtype: torch.dtype) -> tuple[bytes, Tensor]:
        """Return the outer parameters' digest and the change (dim,), 0 off its support, on the CPU, of a message with the agreed count.

        Raises ValueError: a snake_case reason; "bad_support" for other coordinates than a listing or all.
        """
        anchor, payload = message[:ANCHOR_BYTES], message[ANCHOR_BYTES:]
        if len(payload) < HEADER.size:
            raise ValueError("bad_length")
        count = self._count(dim)
        listed = payload[1] == Kind.INDICES and len(payload) >= HEADER.size + LISTING.size
        sent = LISTING.unpack_from(payload, HEADER.size)[0] if listed else dim if payload[1] == Kind.FULL else -1
        if sent != count:  # before any allocation
            raise ValueError("bad_support")
        support, values = codec.decode(payload, dim, dtype, (self.quantizer,))
        return anchor, support.add(torch.zeros(dim, dtype=dtype), values)

    def rounded(self, vector: Tensor) -> Tensor:
        """Return the `vector` (d,) as `decode` gives it, bit for bit. Raises ValueError: "not_finite"."""
        return self.decode(self.encode(vector, bytes(ANCHOR_BYTES)), vector.numel(), vector.dtype)[1].to(vector.device)

    def longest(self, dim: int) -> int:
        """Return the bytes of the longest message of any member."""
        count = self._count(dim)
        fixed = ANCHOR_BYTES + HEADER.size + self.quantizer.size(count)
        return fixed if count == dim else fixed + LISTING.size + rice.longest(count, dim)

    def _count(self, dim: int) -> int:
        """Coordinates of every message of vectors (dim,): that of zeros has as many as any."""
        if dim not in self._counts:
            support = self.selector.select(torch.zeros(dim), None, 0, 0)
            self._counts[dim] = dim if isinstance(support, Full) else support.size(dim)
        return self._counts[dim]


def anchor_digest(anchor: Tensor) -> bytes:
    """Return BLAKE2b-64 of outer parameters (d,), of their little-endian bytes."""
    raw = anchor.detach().cpu().contiguous().view(torch.uint8).numpy()
    return blake2b(raw.data, digest_size=ANCHOR_BYTES).digest()
