"""Engine calls of the exchange protocols, and their replies: what the state machines emit is what crosses the engine pipe.

Every call has exactly one reply. `starling.node.rpc.calls` adds the calls of training and state to these. Encoded as msgpack arrays
between two processes of one node; peers never see them.
"""

from __future__ import annotations

import msgspec


class Call(msgspec.Struct, frozen=True, array_like=True):
    """Base of all calls and replies."""


class Offer(Call, frozen=True, tag="offer"):
    """Initiator: encode our values for transaction `seq` with `peer`. -> Offered

    Args:
        inc, seq: of the edge's transaction: they seed the support, with the swarm's seed.
        theta: mixing weight of the link.
        budget_bytes: what both payloads together may cost; 0 = no limit known.
        give: weight the peer gives to what we send, where links have a direction; else theta.
        take: weight we give to what the peer sends, likewise.
    """

    peer: str
    inc: int
    seq: int
    round: int
    theta: float
    budget_bytes: int = 0
    give: float | None = None
    take: float | None = None


class Offered(Call, frozen=True, tag="offered"):
    """The request's payload and the gain both ends will use."""

    payload: bytes
    gain: float


class Answer(Call, frozen=True, tag="answer"):
    """Responder: compute, remember as pending and encode our part; weights as in Offer. -> Answered, or Refused if the payload is bad"""

    peer: str
    inc: int
    seq: int
    round: int
    theta: float
    gain: float
    payload: bytes
    give: float | None = None
    take: float | None = None


class Answered(Call, frozen=True, tag="answered"):
    """The response's payload.

    Args:
        clip: what is left of the difference after clipping, 0 to 1; None where nothing is clipped here.
    """

    payload: bytes
    clip: float | None = None


class Apply(Call, frozen=True, tag="apply"):
    """Initiator: decode the response to `seq` and apply +v: the transaction's commit point. -> Done, or Refused (nothing applied)"""

    peer: str
    inc: int
    seq: int
    payload: bytes


class Commit(Call, frozen=True, tag="commit"):
    """Responder: apply −v of the pending `seq`. -> Done; anything else makes the edge start anew"""

    peer: str
    inc: int
    seq: int


class Drop(Call, frozen=True, tag="drop"):
    """Either end: forget the offer or pending `seq`, if any, without applying. -> Done"""

    peer: str
    inc: int
    seq: int


class Settle(Call, frozen=True, tag="settle"):
    """The edge was closed in order: its flow stays in c, revocable for a while. -> Done; anything else makes the edge start anew"""

    peer: str


class Revoke(Call, frozen=True, tag="revoke"):
    """Delete the flow of a peer that left, was banned or restarted, settled flows too, and anything pending. -> Done"""

    peer: str


class Publish(Call, frozen=True, tag="publish"):
    """Encode the frozen vector of `round` for all who ask. -> Published, or Refused where our own numbers cannot be sent"""

    round: int


class Published(Call, frozen=True, tag="published"):
    """The payload and its digest (`starling.gossip.exchange.attestation`)."""

    payload: bytes
    digest: bytes


class VerifyUpdate(Call, frozen=True, tag="verify"):
    """Decode a peer's published vector and keep it until Mix. -> Done, or Refused if the payload is bad or does not fit the digest"""

    peer: str
    digest: bytes
    payload: bytes


class Done(Call, frozen=True, tag="done"):
    """It is done.

    Args:
        clipped: of Apply and Commit, whether the difference was as long as the clip allows.
        held: of Mix where vectors are gathered, the peers whose vector the rule clipped or excluded; None where it does not say.
        leaned: of Revoke, whether the remaining flows were compensating for the revoked one: they have to go as well.
        clip: of Apply and Commit: 1 where the difference was not clipped; None where it may have been, or nothing is clipped here.
        distance: of Mix, the consensus distance as this node sees it (`starling.node.engine.consensus`), >= 0; None: no exchange says.
    """

    clipped: bool = False
    held: tuple[str, ...] | None = None
    leaned: bool = False
    clip: float | None = None
    distance: float | None = None


class Refused(Call, frozen=True, tag="refused"):
    """It was not done and nothing changed.

    Args:
        kind: "config" (the person's input), "peer" (the bytes from the peer are bad), "disk" (could not write), "state" (not now).
        reason: for "peer" a snake_case word, else one line for a person.
    """

    kind: str
    reason: str


EdgeCall = Offer | Answer | Apply | Commit | Drop | Settle | Revoke
"""Calls of one edge; they are carried out one after the other, in the order given."""
ExchangeCall = EdgeCall | VerifyUpdate
