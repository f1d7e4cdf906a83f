"""Every message that crosses the network, with its bounds. One table per lane.

A frame is msgpack: an array whose first item is the message's tag. Tags and field order never change;
new fields are appended with a default. Each message has a golden vector under `tests/golden/`.

    lane        protocol id              messages
    control     /starling/control/1      Hello, Probe, Acknowledge, ProbeFor, Spread, Sync, Farewell, Revoked, Told, Evidence,
                                         Beacon, BeaconQuery
    exchange    /starling/exchange/1     Request, Response, Ack, Busy, Solicit, Reset, Close, Closed, or Pull, Pulled, NotNow
    state       /starling/state/1        StateQuery, StateOffer, ChunkQuery, Chunk, ManifestQuery, ManifestReply

History: 1 is the first version.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Lane = Literal["control", "exchange", "state"]
LANES: tuple[Lane, ...] = ("control", "exchange", "state")

MAX_FRAME_BYTES: dict[Lane, int] = {
    "control": 256 << 10,
    "exchange": 256 << 20,  # one dense float32 vector of 64 M parameters, or a masked one of far more
    "state": 2 << 20,
}
MAX_PAYLOAD_BYTES = MAX_FRAME_BYTES["exchange"] - 1024
MAX_CHUNK_BYTES = 1 << 20
MAX_RECORDS = 256
MAX_ADDRESSES = 8
MAX_CREDENTIAL_BYTES = 2048  # an invitation through eight hands
MAX_REVOCATIONS = 16  # each may cost seventeen signatures
MAX_CLAIMS = 64
MAX_PROOF_BYTES = 4096

Counter = Annotated[int, Meta(ge=0, le=2**62)]
PeerId = Annotated[str, Meta(min_length=1, max_length=128)]
Address = Annotated[str, Meta(max_length=256)]
Digest = Annotated[bytes, Meta(min_length=8, max_length=32)]
Digest256 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Payload = Annotated[bytes, Meta(max_length=MAX_PAYLOAD_BYTES)]
Weight = Annotated[float, Meta(ge=0.0, le=1.0)]  # base_k: 128/129 where 129 nodes meet in pairs
Finite = Annotated[float, Meta(ge=-1e12, le=1e12)]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=False):
    """Base of all messages; adds no field."""


# --- exchange: the transaction of gossip/exchange/edge.py -------------------------------------------------


class Request(Message, frozen=True, tag="req"):
    """Initiator -> responder: request an exchange, with our values on the support; answered with the difference.

    Args:
        inc: incarnation of the edge; the larger one wins.
        seq: number of this transaction, never reused within an incarnation.
        committed: the last seq the initiator committed: proof for the responder's pending one.
        round: the initiator's round (steps pace) or slot (clock pace).
        view: digest of the member list the round was computed from.
        theta: mixing weight of this link, (0, 1).
        gain: what a unit of difference adds to the flow, >= 0 (0 for mixing without correction).
        payload: encoded values (starling.gossip.compress.codec).
    """

    inc: Counter
    seq: Counter
    committed: Counter
    round: Counter
    view: Digest
    theta: Weight
    gain: Annotated[float, Meta(ge=0.0, le=1e9)]
    payload: Payload


class Response(Message, frozen=True, tag="rsp"):
    """Responder -> initiator: the encoded difference that both ends will apply with opposite signs."""

    inc: Counter
    seq: Counter
    payload: Payload


class Ack(Message, frozen=True, tag="ack"):
    """Initiator -> responder: `seq` is committed here; proof for the responder to commit it."""

    inc: Counter
    seq: Counter


class Busy(Message, frozen=True, tag="bsy"):
    """Reject a Request, or with seq 0 a Solicit. `round` is the sender's own, so that a peer that is behind can catch up."""

    inc: Counter
    seq: Counter
    reason: Literal["late", "early", "view", "busy", "full", "engine"]
    round: Counter


class Solicit(Message, frozen=True, tag="pok"):
    """Responder -> initiator: please begin an exchange on this edge in this round."""

    inc: Counter
    round: Counter
    view: Digest


class Reset(Message, frozen=True, tag="rst"):
    """Announce our incarnation of this edge (the larger wins; the end with the smaller one deletes its flow). Also greets on a new edge."""

    inc: Counter


class Close(Message, frozen=True, tag="cls"):
    """Close this edge in order: both ends settle its flow. `committed` as in Request."""

    inc: Counter
    committed: Counter


class Closed(Message, frozen=True, tag="cld"):
    """Answer to Close: the edge is closed and settled here. `committed` as in Request."""

    inc: Counter
    committed: Counter


# --- exchange by pulled vectors: gossip/exchange/pull.py --------------------------------


class Pull(Message, frozen=True, tag="pul"):
    """Request the peer's vector of `round`; the peer's own model does not change.

    Args:
        nonce: returned in the answer; a repeated question has the same.
        round: of the requester, whose local steps it has done.
    """

    nonce: Counter
    round: Counter


class Pulled(Message, frozen=True, tag="pld"):
    """Answer to Pull: a vector and the sender's signature for it, the same for all requesters.

    Args:
        nonce: of the question.
        round: of the vector; a later one than asked for if the sender is further.
        incarnation: incarnation of the sender's membership record: a node that starts anew may do a round again.
        digest: BLAKE2b-256 of the payload.
        signature: Ed25519 over swarm, sender, incarnation, round and digest (`starling.gossip.exchange.attestation`).
        payload: the whole vector, encoded (starling.gossip.compress.codec).
    """

    nonce: Counter
    round: Counter
    incarnation: Counter
    digest: Digest256
    signature: Signature
    payload: Payload


class NotNow(Message, frozen=True, tag="nnw"):
    """Reject a Pull, or put it off. `round` is the sender's own, so that a peer that is behind can catch up and one that is ahead can wait.

    wait: it will come when the sender has got there. early: ask again, the sender is far behind. late: the sender is far ahead.
    """

    nonce: Counter
    round: Counter
    reason: Literal["wait", "early", "late", "busy", "full", "engine"]


# --- control: membership ----------------------------------------------------------------------------------


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What one member says of itself, signed. The larger (incarnation, version) wins.

    Args:
        peer: libp2p peer id, which encodes the Ed25519 public key that signs.
        swarm: swarm id this record is for.
        incarnation: unix time in ms of this start of the node; every edge of an older one is void.
        version: raised by the member at every change and to refute a suspicion.
        status: "alive" or "left".
        addresses: multiaddrs to dial.
        signature: Ed25519 over the canonical bytes of all fields above, and of the credential if there is one.
        credential: why it may be a member (starling.node.admission), and its operator; b"" where nothing is asked for. Since 1.1.
    """

    peer: PeerId
    swarm: Annotated[str, Meta(max_length=64)]
    incarnation: Counter
    version: Counter
    status: Literal["alive", "left"]
    addresses: Annotated[tuple[Address, ...], Meta(max_length=MAX_ADDRESSES)]
    signature: Annotated[bytes, Meta(max_length=64)]
    credential: Annotated[bytes, Meta(max_length=MAX_CREDENTIAL_BYTES)] = b""


class Revocation(msgspec.Struct, frozen=True, array_like=True):
    """An invitation is void, and all that hang on it.

    Args:
        chain: the invitations from the founder to the void one.
        by: peer id of who says so: the founder, or one of those through whose hands the chain went before its end.
        signature: Ed25519 of `by` over swarm, inviter and number of the void one.
    """

    chain: Annotated[bytes, Meta(max_length=MAX_CREDENTIAL_BYTES)]
    by: PeerId
    signature: Annotated[bytes, Meta(max_length=64)]


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """What `peer` signed of its vector of a round (`gossip.exchange.attestation`), forwarded by another member. Since 1.1."""

    peer: PeerId
    incarnation: Counter
    round: Counter
    digest: Digest256
    signature: Signature


class Rumor(msgspec.Struct, frozen=True, array_like=True):
    """`source` suspects or declares dead `peer` at the (incarnation, version) it names; only a newer version refutes."""

    peer: PeerId
    incarnation: Counter
    version: Counter
    state: Literal["suspect", "dead"]
    source: PeerId


class Hello(Message, frozen=True, tag="hi"):
    """First message to a member: who I am and which swarm and member list I hold. Answered by Sync."""

    record: Record
    view: Digest
    swarm_time: Finite


class Probe(Message, frozen=True, tag="prb"):
    """Are you there? `nonce` comes back in Acknowledge."""

    nonce: Counter
    view: Digest
    swarm_time: Finite
    rumors: Annotated[tuple[Rumor, ...], Meta(max_length=MAX_RECORDS)] = ()


class Acknowledge(Message, frozen=True, tag="pak"):
    """I am. For an indirect probe the acknowledging helper names whom it reached in `peer`, else ''."""

    nonce: Counter
    view: Digest
    swarm_time: Finite
    peer: Annotated[str, Meta(max_length=128)] = ""
    rumors: Annotated[tuple[Rumor, ...], Meta(max_length=MAX_RECORDS)] = ()


class ProbeFor(Message, frozen=True, tag="prf"):
    """Please probe `peer` for me and acknowledge with my nonce if it answers."""

    nonce: Counter
    peer: PeerId


class Spread(Message, frozen=True, tag="spr"):
    """News: new records and rumors, passed on while fresh."""

    records: Annotated[tuple[Record, ...], Meta(max_length=MAX_RECORDS)] = ()
    rumors: Annotated[tuple[Rumor, ...], Meta(max_length=MAX_RECORDS)] = ()


class Sync(Message, frozen=True, tag="syn"):
    """Anti-entropy: all my records (in several messages if many). `reply` asks for theirs."""

    records: Annotated[tuple[Record, ...], Meta(max_length=MAX_RECORDS)]
    reply: bool


class Farewell(Message, frozen=True, tag="bye"):
    """I leave for good: my record with status "left"."""

    record: Record


class Revoked(Message, frozen=True, tag="rvk"):
    """Invitations that are void. `known` is the digest of all that the sender knows; `reply` asks for those it may lack. Since 1.1."""

    revocations: Annotated[tuple[Revocation, ...], Meta(max_length=MAX_REVOCATIONS)]
    known: Digest
    reply: bool = False


class Told(Message, frozen=True, tag="tld"):
    """Attestations that the sender received lately, so that equivocation is detected. Since 1.1."""

    claims: Annotated[tuple[Claim, ...], Meta(max_length=MAX_CLAIMS)]


class Evidence(Message, frozen=True, tag="evd"):
    """Proof that `peer` equivocated, which every member can check by itself. Since 1.1.

    Args:
        kind: of proof, see `starling.robust.evidence`; one that a node does not know means nothing to it.
        peer: who is proven to have lied.
        a, b: the two things that contradict each other, signed; in the form of the kind.
    """

    kind: Annotated[str, Meta(max_length=32)]
    peer: PeerId
    a: Annotated[bytes, Meta(max_length=MAX_PROOF_BYTES)]
    b: Annotated[bytes, Meta(max_length=MAX_PROOF_BYTES)]


class Beacon(Message, frozen=True, tag="bcn"):
    """What the founder signed for an epoch of ranks (`starling.gossip.overlay.beacon`), from itself or passed on. Since 1.1."""

    epoch: Counter
    signature: Signature


class BeaconQuery(Message, frozen=True, tag="bcq"):
    """Please tell me the beacon of `epoch`, and of those after it; there is no answer if none is known. Since 1.1."""

    epoch: Counter


# --- state: manifest and checkpoint transfer ----------------------------------------------------------------


class ManifestQuery(Message, frozen=True, tag="mq"):
    """Send me the manifest whose hash is `swarm`."""

    swarm: Annotated[str, Meta(max_length=64)]


class ManifestReply(Message, frozen=True, tag="mr"):
    """Canonical manifest bytes, empty if unknown; the asker checks the hash."""

    swarm: Annotated[str, Meta(max_length=64)]
    manifest: Annotated[bytes, Meta(max_length=64 << 10)]


class StateQuery(Message, frozen=True, tag="sq"):
    """Have you a model state to give?"""

    nonce: Counter


class StateOffer(Message, frozen=True, tag="so"):
    """A snapshot held for a while: its id, round, size and digest. `size` 0: nothing to give now.

    Args:
        schema: digest of parameter names and shapes; must equal the asker's.
    """

    nonce: Counter
    snapshot: Counter
    round: Counter
    size: Counter
    digest: Annotated[bytes, Meta(max_length=32)]
    schema: Annotated[bytes, Meta(max_length=32)]


class ChunkQuery(Message, frozen=True, tag="cq"):
    """Bytes of a snapshot from `offset`, at most MAX_CHUNK_BYTES."""

    snapshot: Counter
    offset: Counter


class Chunk(Message, frozen=True, tag="ck"):
    """The bytes; empty means the snapshot is no longer held."""

    snapshot: Counter
    offset: Counter
    data: Annotated[bytes, Meta(max_length=MAX_CHUNK_BYTES)]


Control = (
    Hello | Probe | Acknowledge | ProbeFor | Spread | Sync | Farewell | Revoked | Told | Evidence | Beacon | BeaconQuery
)
Exchange = Request | Response | Ack | Busy | Solicit | Reset | Close | Closed
Pulling = Pull | Pulled | NotNow
State = ManifestQuery | ManifestReply | StateQuery | StateOffer | ChunkQuery | Chunk
