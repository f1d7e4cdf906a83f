"""The vocabulary of an edge's state machine: a transaction's states and what the shell is asked to do.

Engine commands of one edge are carried out one after the other, in the order given; their results come back through the method named
with each. `inc` and `seq` travel along so that a result that comes too late is recognised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from starling.gossip.wire.schema import Exchange, Poke, Request, Response

Outcome = Literal["committed", "aborted", "busy", "timeout"]
Role = Literal["initiator", "responder"]
Refusal = Literal["late", "early", "view", "busy", "full", "engine"]


@dataclass(frozen=True, slots=True)
class Outstanding:
    """The initiator's transaction. `seq` is 0 while "greeting"; `request` stands from "asking" on."""

    seq: int
    round: int
    view: bytes
    theta: float
    phase: Literal["greeting", "offering", "asking", "applying"]
    request: Request | None = None


@dataclass(frozen=True, slots=True)
class Pending:
    """The responder's transaction. `request` stands while "asked", `response` from "answered" on."""

    seq: int
    round: int
    phase: Literal["asked", "answering", "answered"]
    request: Request | None = None
    response: Response | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Send this to the peer; it may be lost."""

    message: Exchange


@dataclass(frozen=True, slots=True)
class AskOffer:
    """Engine: encode our values. -> `Edge.offered` or `Edge.failed`"""

    inc: int
    seq: int
    round: int
    theta: float


@dataclass(frozen=True, slots=True)
class AskAnswer:
    """Engine: compute and keep the difference. -> `Edge.answered` or `Edge.failed`"""

    request: Request


@dataclass(frozen=True, slots=True)
class AskApply:
    """Engine: apply +v. Its success is the transaction's commit point. -> `Edge.applied` or `Edge.failed`"""

    inc: int
    seq: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class DoCommit:
    """Engine: apply −v of the difference it keeps. Must succeed; if not, `Edge.reset`."""

    inc: int
    seq: int


@dataclass(frozen=True, slots=True)
class DoDrop:
    """Engine: forget what it keeps for this transaction, if anything."""

    inc: int
    seq: int


@dataclass(frozen=True, slots=True)
class DoRevoke:
    """Engine: delete the flow of this edge and all it keeps for it; what was settled earlier too if `settled`."""

    settled: bool = True


@dataclass(frozen=True, slots=True)
class DoSettle:
    """Engine: the flow of this edge is final and stays. Must succeed; if not, `Edge.reset`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Pace: the peer asks for an exchange. -> `Edge.accept` or `Edge.refuse`, at once or later"""

    request: Request


@dataclass(frozen=True, slots=True)
class Poked:
    """Pace: the peer would like us to begin. -> `Edge.begin`, `Edge.refuse_poke` or nothing"""

    poke: Poke


@dataclass(frozen=True, slots=True)
class Ended:
    """Pace: a transaction is over at this end.

    Args:
        round: the initiator's round (steps pace) or slot (clock pace) it was about.
        seq: its number, 0 where it never got one.
        outcome: how.
        reason: why not committed, in a snake_case word; "" if committed.
        role: ours.
        payload_bytes: size of the payload we contributed, 0 unless committed.
    """

    round: int
    seq: int
    outcome: Outcome
    reason: str
    role: Role
    payload_bytes: int = 0


EngineCommand = AskOffer | AskAnswer | AskApply | DoCommit | DoDrop | DoRevoke | DoSettle
Notice = Asked | Poked | Ended
Command = Send | EngineCommand | Notice
