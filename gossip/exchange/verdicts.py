"""Decisions on a peer's request for an exchange, shared by rounds and slots."""

from __future__ import annotations

from dataclasses import dataclass

from starling.gossip.exchange.commands import Refusal
from starling.gossip.wire.schema import Request, Solicit

ExchangeRequest = Request | Solicit

MAX_SERVED = 4
"""Exchanges one peer gets in a round, or all peers in a slot: encoding costs the engine time."""


@dataclass(frozen=True, slots=True)
class Accept:
    """Exchange now."""


@dataclass(frozen=True, slots=True)
class Defer:
    """Keep the request and decide when our round opens."""


@dataclass(frozen=True, slots=True)
class Reject:
    """Answer Busy."""

    reason: Refusal


Decision = Accept | Defer | Reject


@dataclass(frozen=True, slots=True)
class DeferredDecision:
    """The decision on a request that was deferred."""

    peer: str
    request: ExchangeRequest
    decision: Accept | Reject
