"""Vocabulary of the exchange state machines: states of a transaction, commands, and decisions on a peer's request.

Engine calls (`starling.gossip.exchange.calls`) of one edge are carried out one after the other, in the order given; their replies come
back through `reply`. `inc` and `seq` travel along so that a reply that comes too late is recognised.
"""

from dataclasses import dataclass, field
from typing import Literal

from starling.gossip.exchange.calls import EdgeCall, VerifyEarlier, VerifyUpdate
from starling.gossip.wire.schema import PairwiseMessage, PulledMessage, Request, Response, Solicit

Outcome = Literal["committed", "aborted", "busy", "timeout"]
Role = Literal["initiator", "responder"]
Refusal = Literal["late", "early", "view", "busy", "full", "engine"]
ExchangeRequest = Request | Solicit

MAX_SERVED = 4  # exchanges served for one peer in a round, or for all in a slot: each costs the engine encoding time


@dataclass(frozen=True, slots=True)
class Outstanding:
    """The initiator's transaction. `seq` is 0 while "greeting"; `request` is set from "asking" on; the rest as in `calls.Offer`."""

    seq: int
    round: int
    view: bytes
    theta: float
    phase: Literal["greeting", "offering", "asking", "applying"]
    request: Request | None = None
    budget_bytes: int = 0
    give: float | None = None
    take: float | None = None
    members: int = 1
    copy: int = 1  # number of times the request was sent


@dataclass(frozen=True, slots=True)
class Pending:
    """The responder's transaction. `request` is set while "asked", `response` from "answered" on."""

    seq: int
    round: int
    phase: Literal["asked", "answering", "answered"]
    request: Request | None = None
    response: Response | None = None
    copy: int = 1  # number of times the response was sent


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send this to the peer; it may be lost. A `repeat` is not needed while earlier frames to the peer still wait to be sent."""

    peer: str
    message: PairwiseMessage | PulledMessage
    repeat: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """A transaction is over at this end."""

    peer: str
    round: int  # the initiator's round (steps pace) or slot (clock pace)
    seq: int  # 0 if no number was assigned
    outcome: Outcome
    reason: str  # snake_case reason why it did not commit; "" if it did
    role: Role
    payload_bytes: int = 0  # size of our payload, 0 unless committed


@dataclass(frozen=True, slots=True)
class DiscardCalls:
    """Remove the peer's queued engine calls; one that is being carried out continues."""

    peer: str


@dataclass(frozen=True, slots=True)
class EdgeDropped:
    """Pace "clock": the peer closed the edge, or has no room for it."""

    peer: str


@dataclass(frozen=True, slots=True)
class Fault:
    """The peer broke the protocol; `reason` is a snake_case word."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Event:
    """A line for the log: `name` in snake_case, `text` for people."""

    name: str
    text: str
    level: Literal["info", "warning"] = "warning"
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accept:
    """Decision: exchange with the peer now."""


@dataclass(frozen=True, slots=True)
class Defer:
    """Decision: keep the request until our round opens."""


@dataclass(frozen=True, slots=True)
class Reject:
    """Decision: answer Busy."""

    reason: Refusal


Decision = Accept | Defer | Reject


EdgeCommand = SendMessage | EdgeCall | ExchangeRequest | Ended
"""Commands that an edge returns.

The pace decides on requests among them: a Request -> `Edge.accept` or `Edge.refuse`, at once or later; a Solicit -> `Edge.begin`,
`Edge.refuse_solicit` or nothing.
"""
Command = SendMessage | EdgeCall | VerifyUpdate | VerifyEarlier | DiscardCalls | Ended | EdgeDropped | Fault | Event
