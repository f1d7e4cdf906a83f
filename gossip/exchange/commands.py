"""Output vocabulary of the exchange state machines, and the states of a transaction.

Engine calls (`starling.gossip.exchange.calls`) of one edge are carried out one after the other, in the order given; their replies come
back through `reply`. `inc` and `seq` travel along so that a reply that comes too late is recognised.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from starling.gossip.exchange.calls import EdgeCall, VerifyUpdate
from starling.gossip.wire.schema import Exchange, Pulling, Request, Response, Solicit

Outcome = Literal["committed", "aborted", "busy", "timeout"]
Role = Literal["initiator", "responder"]
Refusal = Literal["late", "early", "view", "busy", "full", "engine"]


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


@dataclass(frozen=True, slots=True)
class Pending:
    """The responder's transaction. `request` is set while "asked", `response` from "answered" on."""

    seq: int
    round: int
    phase: Literal["asked", "answering", "answered"]
    request: Request | None = None
    response: Response | None = None


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send this to the peer; it may be lost.

    Args:
        repeat: a retransmission, not needed while earlier frames to the peer still wait to be sent.
    """

    peer: str
    message: Exchange | Pulling
    repeat: bool = False


@dataclass(frozen=True, slots=True)
class Requested:
    """Edge to pace: the peer requests an exchange. -> `Edge.accept` or `Edge.refuse`, at once or later"""

    request: Request


@dataclass(frozen=True, slots=True)
class Solicited:
    """Edge to pace: the peer asks us to begin an exchange. -> `Edge.begin`, `Edge.refuse_solicit` or nothing"""

    solicit: Solicit


@dataclass(frozen=True, slots=True)
class Ended:
    """A transaction is over at this end.

    Args:
        peer: the other end.
        round: the initiator's round (steps pace) or slot (clock pace) it was about.
        seq: its number, 0 where it never got one.
        outcome: how.
        reason: why not committed, in a snake_case word; "" if committed.
        role: ours.
        payload_bytes: size of the payload we contributed, 0 unless committed.
    """

    peer: str
    round: int
    seq: int
    outcome: Outcome
    reason: str
    role: Role
    payload_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DiscardCalls:
    """Remove the peer's engine calls that wait to be carried out; one under way goes on."""

    peer: str


@dataclass(frozen=True, slots=True)
class EdgeDropped:
    """Clock pace: the peer closed the edge, or has no room for it."""

    peer: str


@dataclass(frozen=True, slots=True)
class Fault:
    """The peer broke the protocol; `reason` is a snake_case word."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Event:
    """A line for the log: `name` in snake_case, `text` for a person."""

    name: str
    text: str
    level: Literal["info", "warning"] = "warning"
    fields: dict[str, str] = field(default_factory=dict)


EdgeCommand = SendMessage | EdgeCall | Requested | Solicited | Ended
Command = SendMessage | EdgeCall | VerifyUpdate | DiscardCalls | Ended | EdgeDropped | Fault | Event
