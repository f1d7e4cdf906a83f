"""The arithmetic of one exchange, in the order of its messages. The engine and the simulator both call it.

    initiator   request = encode_request(own values on a support)
    responder   support, theirs = decode_request(request);  response, v = encode_difference(own values there − theirs)
    initiator   v = decode_response(response)

Both ends then apply the same v, the initiator +v and the responder −v: what the quantiser and the clip took away was taken from
both. All of it happens on the CPU, as v is defined by the response's bytes and not by some device's arithmetic.

Where ends swap messages of their own instead, each uses `encode_message` and `decode_message`, on its own message as well: what
is kept is what the bytes say.

Shapes: d coordinates of the shared vector, k of one exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starling.gossip.api import Quantizer
from starling.gossip.compress import codec
from starling.gossip.compress.select.low_rank import LowRank
from starling.gossip.compress.support import Indices, Support
from starling.gossip.lazy_torch import Generator, Tensor, torch

Clip = Callable[[Tensor, float], tuple[Tensor, bool]]

ROUNDING = 1e-6  # relative difference of a norm between two machines
_SHRINK = 0.9
_LARGEST = 1e30  # largest number in a swapped message, which is not clipped: sums of millions of them are finite


@dataclass(frozen=True, slots=True)
class ExchangeCodec:
    """The swarm's codec of every exchange."""

    request: Quantizer  # quantizer of the initiator's values
    response: Quantizer  # quantizer of the difference
    clip_norm: float  # largest norm of an applied difference, >= 0; 0 is off
    clip: Clip  # (v, norm) -> v shortened to the norm, and whether it was longer; an odd function of v. ValueError if not finite
    low_rank: LowRank | None = None  # rank and matrices of low-rank exchanges; None without
    chunk: int = 0  # chunk size of cosine atoms; 0: none are used
    parts: int = 0  # number of fragments of a vector; 0: whole vectors

    def encode_request(self, shared: Tensor, support: Support, generator: Generator) -> bytes:
        """Return the request's payload: the values of `shared` (d,) on the support."""
        return codec.encode_from(shared, support, self.request, generator)

    def decode_request(self, payload: bytes, dim: int, dtype: torch.dtype) -> tuple[Support, Tensor]:
        """Support and (k,) values of a request. Raises ValueError with a snake_case reason."""
        return codec.decode(payload, dim, dtype, (self.request,), self.low_rank, self.chunk, parts=self.parts)

    def encode_difference(self, difference: Tensor, dim: int, generator: Generator, wish: Indices | None = None) -> tuple[bytes, Tensor]:
        """Encode own minus remote values (k,), which are overwritten -> the response's payload and v (k,), as the initiator will decode it.

        A quantiser may lengthen what the clip shortened; then it is shortened more, so that the bound holds for v itself.

        Raises ValueError: "not_finite": the values are too far apart for their type.
        """
        clipped, longer = self.clip(difference, self.clip_norm)
        if longer:
            difference.copy_(clipped)
        del clipped
        shrink = _SHRINK
        while True:
            payload, v = codec.encode_values(difference, self.response, dim, generator, wish)
            if not self.clip(v, self.clip_norm)[1]:
                return payload, v
            difference.mul_(shrink)
            shrink *= shrink  # the loop ends at 0 after a dozen iterations at most

    def decode_response(
        self, payload: bytes, support: Support, dim: int, dtype: torch.dtype, wish_limit: int = 0
    ) -> tuple[Tensor, Indices | None]:
        """Return the v (k,) of a response, and the coordinates that the responder requests.

        Raises ValueError: a snake_case reason; "clip_norm_exceeded" where an honest responder would have clipped.
        """
        v, wish = codec.decode_values(payload, support, dim, dtype, (self.response,), wish_limit)
        if self.clip(v, self.clip_norm * (1.0 + ROUNDING))[1]:
            raise ValueError("clip_norm_exceeded")
        return v, wish

    def encode_message(self, message: Tensor | None, support: Support, generator: Generator) -> bytes:
        """Return the payload of a message (D,) that is swapped: its values on the support; nothing at all for None."""
        if message is None:
            return b""
        return codec.encode_from(message, support, self.response, generator)

    def decode_message(self, payload: bytes, dim: int, dtype: torch.dtype) -> Tensor | None:
        """Return the message (dim,) of a payload, zero off its support, or None for nothing.

        Raises ValueError: a snake_case reason; "too_large" for numbers that soon would add up to infinity.
        """
        if not payload:
            return None
        support, values = codec.decode(payload, dim, dtype, (self.response,), self.low_rank, self.chunk, parts=self.parts)
        message = support.add(torch.zeros(dim, dtype=dtype), values)
        if not bool((message.abs() <= _LARGEST).all()):
            raise ValueError("too_large")
        return message


def edge(a: str, b: str) -> str:
    """Return the name of the edge between two peers, equal at both."""
    return f"{min(a, b)} {max(a, b)}"
