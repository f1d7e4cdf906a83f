"""Payloads of drift tracking: what an exchange carries besides x and v, in the order in which it crosses the wire.

    initiator   request = ask(payload with x, own)
    responder   payload, values, N = split(request);  theirs = asked(values, N);  response, drift = answer(payload with v, mine, theirs)
    initiator   payload, values, w' = split(response);  drift = answered(values, w')

A direction and its noise power follow the payload with x, u and w' that with v; a trailer ends both. Where N is infinite z is left out,
where the gate is shut u is. Both ends apply the same u and w', the responder −u. Where flows have a reach the initiator's stands before z.

Shapes: D coordinates of the shared vector (`dim`), k of one exchange.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from starling.gossip.api import Drift
from starling.gossip.compress import codec
from starling.gossip.compress.header import REACH, TRAILER
from starling.gossip.compress.support import Full, Support
from starling.gossip.lazy_torch import Generator, Tensor, torch
from starling.gossip.mix.drift import gate, within
from starling.gossip.mix.exchange_codec import ROUNDING, ExchangeCodec


@dataclass(frozen=True, slots=True)
class Direction:
    """Z (k,) on the support of an exchange, its noise power N >= 0, and how far a flow may reach. Without z, None, N is infinite."""

    z: Tensor | None
    noise: float
    reach: float = math.inf


@dataclass(frozen=True, slots=True)
class Held:
    """The flow (w,) of the initiator on the coordinates of an exchange, moved by all but u, and Σ of its squares elsewhere."""

    flow: Tensor
    rest: float

    def opposite(self) -> Held:
        """That of the responder."""
        return Held(-self.flow, self.rest)

    def most(self, weight: float, u: Tensor, reach: float, slack: float = 0.0) -> float:
        """As `starling.gossip.mix.drift.within`."""
        return within(weight, u, self.flow, self.rest, reach, slack)


def on(support: Support, z: Tensor, noise: Tensor, reach: Tensor | None = None) -> Direction:
    """The part of z (D,), perhaps z itself, with noise (1,) and perhaps a reach (1,), that an exchange is about."""
    known = float(noise)
    far = math.inf if reach is None else float(reach)
    if known == math.inf:
        return Direction(None, known, far)
    return Direction((z if isinstance(support, Full) else support.take(z)).cpu(), known, far)


def split(payload: bytes) -> tuple[bytes, bytes, float]:
    """A payload -> that of the exchange, that of z or u (b"" where it was left out), and N or w'.

    Raises ValueError: "bad_length", or "bad_drift" for a number that is negative or not a number.
    """
    end = len(payload) - TRAILER.size
    if end < 0:
        raise ValueError("bad_length")
    number, length = TRAILER.unpack_from(payload, end)
    if length > end:
        raise ValueError("bad_length")
    if not number >= 0.0:
        raise ValueError("bad_drift")
    return payload[: end - length], payload[end - length : end], number


def _joined(payload: bytes, values: bytes, number: float) -> bytes:
    return b"".join((payload, values, TRAILER.pack(number, len(values))))


def ask(agreed: ExchangeCodec, payload: bytes, own: Direction, dim: int, generator: Generator) -> bytes:
    """A request with the initiator's direction. Raises ValueError("not_finite") where the codec cannot hold it."""
    values = b"" if own.z is None else codec.encode_values(own.z, agreed.response, dim, generator)
    if values and own.reach < math.inf:
        values = REACH.pack(own.reach) + values
    return _joined(payload, values, own.noise)


def asked(
    agreed: ExchangeCodec, values: bytes, noise: float, support: Support, dim: int, dtype: torch.dtype, *, limited: bool = False
) -> Direction:  # fmt: skip
    """The initiator's direction as decoded, from what `split` gave of a request; with a reach where flows are `limited`.

    Raises ValueError: a snake_case reason.
    """
    if (noise < math.inf) != bool(values):
        raise ValueError("bad_drift")
    reach = math.inf
    if values and limited:
        if len(values) <= REACH.size:
            raise ValueError("bad_length")
        reach, values = REACH.unpack_from(values)[0], values[REACH.size :]
        if not 0.0 <= reach < math.inf:
            raise ValueError("bad_drift")
    z = codec.decode_values(values, support, dim, dtype, (agreed.response,))[0] if values else None
    return Direction(z, noise, reach)


def answer(
    agreed: ExchangeCodec, payload: bytes, mine: Direction, theirs: Direction, support: Support, theta: float, dim: int,
    generator: Generator, held: Held | None = None,
) -> tuple[bytes, Drift | None]:  # fmt: skip
    """A response with u and w', and what they do at the initiator; None where the gate is shut. `held`: the flow, where it is limited.
    The memory of `theirs.z` is used for what is encoded.

    Raises ValueError: "not_finite".
    """
    values, weight, drift = b"", 0.0, None
    if mine.z is not None and theirs.z is not None:
        torch.sub(mine.z, theirs.z, out=theirs.z)
        values, u = agreed.encode_difference(theirs.z, support, dim, generator)
        weight = gate(theta, support.ratio(dim), mine.noise + theirs.noise, u)
        if held is not None:
            weight = held.most(weight, support.spread(u, dim), min(mine.reach, theirs.reach))
        values, drift = (values, Drift(u, weight)) if weight else (b"", None)
    return _joined(payload, values, weight), drift


def answered(
    agreed: ExchangeCodec, values: bytes, weight: float, support: Support, theta: float, dim: int, dtype: torch.dtype,
    held: Held | None = None, reach: float = math.inf,
) -> Drift | None:  # fmt: skip
    """What u and w' of a response do at the initiator, from what `split` gave of it.

    Raises ValueError: a snake_case reason; "bad_drift" for a w' that no honest responder could send.
    """
    if weight > theta or (weight > 0.0) != bool(values):
        raise ValueError("bad_drift")
    if not values:
        return None
    u = agreed.decode_response(values, support, dim, dtype)[0]
    if held is not None and weight > held.most(theta, support.spread(u, dim), reach, ROUNDING):
        raise ValueError("bad_drift")
    return Drift(u, weight)
