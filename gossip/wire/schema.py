"""Every message that crosses the network, with its bounds. One table per lane.

A frame is msgpack: an array whose first item is the message's tag. Tags and field order never change;
new fields are appended with a default. Each message has a golden vector under `tests/golden/`.

    lane        protocol id              messages
    control     /starling/control/1      Hello, Probe, Acknowledge, ProbeFor, Spread, Compare, Want, Sync, Farewell, Revoked,
                                         Attestations, Evidence, Beacon, BeaconQuery, DialMe, Dialed, StopVote
    exchange    /starling/exchange/1     Request, Response, Ack, Busy, Solicit, Reset, Close, Closed, Check, or Pull, Pulled, NotNow,
                                          Wake, Relay, Relayed
    state       /starling/state/2        StateQuery, StateOffer, ChunkQuery, Chunk, DigestsQuery, Digests, ManifestQuery, ManifestReply,
                                         StageQuery, StageReply
    crew        /starling/crew/2         Ready, Minutes, Forward, Backward, Told, Piece, Kept

Numbers of the ids, and when they are raised: `starling.node.versions`. "Since 1.1" names versions before the first release.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Lane = Literal["control", "exchange", "state", "crew"]
LANES: tuple[Lane, ...] = ("control", "exchange", "state", "crew")

MAX_FRAME_BYTES: dict[Lane, int] = {
    "control": 256 << 10,
    "exchange": 256 << 20,  # one dense float32 vector of 64 M parameters, or a masked one of far more
    "state": 2 << 20,
    "crew": 64 << 20,  # an activation of 16 M numbers in float32
}
MAX_PAYLOAD_BYTES = MAX_FRAME_BYTES["exchange"] - 1024
MAX_CHUNK_BYTES = 1 << 20
MAX_RECORDS = 56  # records in one frame: the largest is under 4.6 KB, so the frame stays below the control lane's 256 KiB
MAX_RUMORS = 64
MAX_BRANCHES, MAX_LEAVES, MAX_KEYS = 64, 64, 64  # entries in one message that compares tables
LEAF_ENTRIES, KEY_BYTES, MARK_BYTES = 16, 8, 8
PREFIX_DIGITS = 8  # digits of a prefix, of a key's 16 hexadecimal ones
MAX_ADDRESSES = 8
MAX_CREDENTIAL_BYTES = 2048  # an invitation through eight hands
MAX_REVOCATIONS = 16  # each may cost seventeen signature checks
MAX_CLAIMS = 64
MAX_WITNESSES = 3
MAX_PROOF_BYTES = 4096
MAX_LABEL_BYTES = 8 << 20
MAX_ACTIVATION_BYTES = MAX_FRAME_BYTES["crew"] - MAX_LABEL_BYTES - 1024
MAX_POINTS = 2
MAX_STAGES = 16

Counter = Annotated[int, Meta(ge=0, le=2**62)]
PeerId = Annotated[str, Meta(min_length=1, max_length=128)]
SwarmId = Annotated[str, Meta(max_length=64)]
Address = Annotated[str, Meta(max_length=256)]
Digest = Annotated[bytes, Meta(min_length=8, max_length=32)]
Digest256 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Payload = Annotated[bytes, Meta(max_length=MAX_PAYLOAD_BYTES)]
Stage = Annotated[int, Meta(ge=0, lt=MAX_STAGES)]
Weight = Annotated[float, Meta(ge=0.0, le=1.0)]  # up to 128/129, in base_k with 129 members in pairs
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Reference = Annotated[float, Meta(ge=0.0, le=1e300)]
Prefix = Annotated[str, Meta(pattern=rf"\A[0-9a-f]{{0,{PREFIX_DIGITS}}}\Z")]
Finite = Annotated[float, Meta(ge=-1e12, le=1e12)]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=False):
    """Base of all messages; adds no field."""

    @property
    def figures(self) -> tuple[int, int, int]:
        """Return the number of the transaction or request, the bytes of the payload, and the round; 0 for each that is missing."""
        number = getattr(self, "seq", getattr(self, "nonce", 0))
        return number, len(getattr(self, "payload", b"")), getattr(self, "round", 0)


class Request(Message, frozen=True, tag="req"):
    """Initiator -> responder: request an exchange, with our values on the support; answered with the difference."""

    inc: Counter  # incarnation of the edge; the larger one wins
    seq: Counter  # number of this transaction, never reused within an incarnation
    committed: Counter  # the last seq the initiator committed: proof for the responder's pending one
    round: Counter  # the initiator's round (steps pace) or slot (clock pace)
    view: Digest  # digest of the member list the round was computed from
    theta: Weight  # mixing weight of this link, (0, 1)
    gain: Annotated[float, Meta(ge=0.0, le=1e9)]  # change of the flow per unit of difference; 0: no correction
    payload: Payload  # encoded values (starling.gossip.compress.codec)
    borne: Share = 1.0  # share of our correction that local steps confirmed (starling.gossip.mix.borne). Since 1.3
    reference: Reference = 0.0  # reference with which our end compares the difference (starling.robust.distances); 0: none. Since 1.4


class Response(Message, frozen=True, tag="rsp"):
    """Responder -> initiator: the encoded difference that both ends will apply with opposite signs."""

    inc: Counter
    seq: Counter
    payload: Payload
    borne: Share = 1.0  # the responder's share, as in Request. Since 1.3
    share: Share = 1.0  # factor of the gain for flows: less if the responder's steps are longer, or an end clips. Since 1.3
    clip: Share = 1.0  # share of the difference that the swarm's clip left. Since 1.4


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
    """Responder -> initiator: request to start an exchange on this edge in this round."""

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


class Check(Message, frozen=True, tag="chk"):
    """Either end: our vector of transaction `seq` was sent before this on the same lane, and the next message of it has not arrived.

    The receiver repeats small messages, and reports `lost` if the vector is missing: only then is that sent again. Since 1.2.
    """

    inc: Counter
    seq: Counter
    copy: Counter  # how often the vector was sent; with `lost`, how often the missing one was
    lost: bool = False


class Pull(Message, frozen=True, tag="pul"):
    """Request the peer's vector of `round`; the peer's own model does not change."""

    nonce: Counter  # returned in the answer; a repeated question has the same
    round: Counter  # round of the requester, whose local steps it has done
    lacks: bool = False  # for summed messages: whether the requester lacks some of earlier rounds. Since 1.4


class Pulled(Message, frozen=True, tag="pld"):
    """Answer to Pull: a vector and the sender's signature for it, the same for all requesters."""

    nonce: Counter  # of the question
    round: Counter  # round of the vector; later than requested if the sender is ahead
    incarnation: Counter  # incarnation of the sender's membership record: a restarted node may repeat a round
    digest: Digest256  # BLAKE2b-256 of the payload
    signature: Signature  # signature over swarm, sender, incarnation, round and digest (`starling.gossip.exchange.attestation`)
    payload: Payload  # the whole vector, encoded (starling.gossip.compress.codec)
    heard: Annotated[bytes, Meta(max_length=8)] = b""
    """To who lacks messages, BLAKE2b-64 of those of the rounds before that are here (`starling.gossip.exchange.relays`). Since 1.4."""


class NotNow(Message, frozen=True, tag="nnw"):
    """Reject a Pull, or put it off. `round` is the sender's own, so that a peer that is behind can catch up and one that is ahead can wait.

    wait: the vector will follow when it is published. early: ask again, the sender is far behind. late: the sender is far ahead.
    """

    nonce: Counter
    round: Counter
    reason: Literal["wait", "early", "late", "busy", "full", "engine"]


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A member's signed record of itself. The larger (incarnation, version) wins."""

    peer: PeerId  # libp2p peer id, which encodes the Ed25519 public key that signs
    swarm: SwarmId  # swarm id this record is for
    incarnation: Counter  # unix time in ms of this start of the node; every edge of an older one is void
    version: Counter  # raised by the member at every change and to refute a suspicion
    status: Literal["alive", "left"]
    addresses: Annotated[tuple[Address, ...], Meta(max_length=MAX_ADDRESSES)]  # multiaddrs to dial
    signature: Annotated[bytes, Meta(max_length=64)]
    """Ed25519 over the canonical bytes of all fields above, and of credential and seat if there are such."""
    credential: Annotated[bytes, Meta(max_length=MAX_CREDENTIAL_BYTES)] = b""
    """Its proof of admission (starling.node.admission) and its operator; b"" where none is required. Since 1.1."""
    seat: Counter = 0
    """Its place in a crew (starling.gossip.pipeline.stage_assignments), signed as well where there is one; 0: none. Since 1.3."""


class Revocation(msgspec.Struct, frozen=True, array_like=True):
    """An invitation is void, and all that were derived from it."""

    chain: Annotated[bytes, Meta(max_length=MAX_CREDENTIAL_BYTES)]  # the invitations from the creator to the void one
    by: PeerId  # peer id of the revoker: the creator, or an inviter earlier in the chain of invitations
    signature: Annotated[bytes, Meta(max_length=64)]  # Ed25519 of `by` over swarm, inviter and number of the void one


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """A signed statement of `peer` about its vector of a round (`gossip.exchange.attestation`), forwarded by another member. Since 1.1."""

    peer: PeerId
    incarnation: Counter
    round: Counter
    digest: Digest256
    signature: Signature


class Wake(Message, frozen=True, tag="wke"):
    """Sampled rounds: vectors of `turn` are published, as signed by their authors; without claims, a request for the others' turn.

    Since 1.2.
    """

    turn: Counter
    yours: bool  # the receiver is to do the next turn
    claims: Annotated[tuple[Claim, ...], Meta(max_length=MAX_WITNESSES)]
    """Of members that have published `turn`, or the turn before it; their rounds are turns."""


class Relay(Message, frozen=True, tag="rly"):
    """Request the message of `author` in `round` of a member that has it. Answered by Relayed, or NotNow where it has not. Since 1.4."""

    nonce: Counter  # returned in the answer
    round: Counter
    author: PeerId


class Relayed(Message, frozen=True, tag="rld"):
    """Answer to Relay: another member's message as that member signed it. Since 1.4."""

    nonce: Counter
    claim: Claim
    payload: Payload


class Rumor(msgspec.Struct, frozen=True, array_like=True):
    """`source` suspects or declares dead `peer` at the (incarnation, version) it names; only a newer version refutes."""

    peer: PeerId
    incarnation: Counter
    version: Counter
    state: Literal["suspect", "dead"]
    source: PeerId


Records = Annotated[tuple[Record, ...], Meta(max_length=MAX_RECORDS)]
Rumors = Annotated[tuple[Rumor, ...], Meta(max_length=MAX_RUMORS)]


class Hello(Message, frozen=True, tag="hi"):
    """First message to a member: our record and our live set's digest. Answered by Sync to a sender without members, else by Compare."""

    record: Record
    view: Digest
    swarm_time: Finite


class Probe(Message, frozen=True, tag="prb"):
    """Liveness probe; Acknowledge repeats `nonce`."""

    nonce: Counter
    view: Digest
    swarm_time: Finite
    rumors: Rumors = ()


class Acknowledge(Message, frozen=True, tag="pak"):
    """Answer to Probe. For an indirect probe the helper names the member it reached in `peer`, else ''."""

    nonce: Counter
    view: Digest
    swarm_time: Finite
    peer: Annotated[str, Meta(max_length=128)] = ""
    rumors: Rumors = ()


class ProbeFor(Message, frozen=True, tag="prf"):
    """Request to probe `peer` on our behalf, and to acknowledge with our nonce if it answers."""

    nonce: Counter
    peer: PeerId


class Spread(Message, frozen=True, tag="spr"):
    """Dissemination of new records and rumors; forwarded for a bounded time."""

    records: Records = ()
    rumors: Rumors = ()


class Branch(msgspec.Struct, frozen=True, array_like=True):
    """The sender's entries whose keys begin with `prefix` have this digest."""

    prefix: Prefix  # hexadecimal digits; "" is the whole table
    digest: Annotated[bytes, Meta(min_length=16, max_length=16)]


class Leaf(msgspec.Struct, frozen=True, array_like=True):
    """The sender's complete entries whose keys begin with `prefix`."""

    prefix: Prefix
    entries: Annotated[bytes, Meta(max_length=LEAF_ENTRIES * (KEY_BYTES + MARK_BYTES))]
    """Key and mark of each, sorted: the BLAKE2b-64 of its peer id and that of its record."""


class Compare(Message, frozen=True, tag="cmp"):
    """Anti-entropy: parts of the sender's table of records. Answered by what is below the branches that differ, by Sync and by Want."""

    branches: Annotated[tuple[Branch, ...], Meta(max_length=MAX_BRANCHES)] = ()
    leaves: Annotated[tuple[Leaf, ...], Meta(max_length=MAX_LEAVES)] = ()


class Want(Message, frozen=True, tag="wnt"):
    """Request for the records with these keys, which the sender of a Compare listed. Answered by Sync."""

    keys: Annotated[tuple[Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)], ...], Meta(max_length=MAX_KEYS)]


class Sync(Message, frozen=True, tag="syn"):
    """Anti-entropy: records that the receiver lacks."""

    records: Records


class Farewell(Message, frozen=True, tag="bye"):
    """The sender leaves for good: its record with status "left"."""

    record: Record


class Revoked(Message, frozen=True, tag="rvk"):
    """Void invitations. `known` is the digest of all that the sender knows; `reply` requests those it may lack. Since 1.1."""

    revocations: Annotated[tuple[Revocation, ...], Meta(max_length=MAX_REVOCATIONS)]
    known: Digest
    reply: bool = False


class Attestations(Message, frozen=True, tag="tld"):
    """Attestations that the sender received lately, so that equivocation is detected. Since 1.1."""

    claims: Annotated[tuple[Claim, ...], Meta(max_length=MAX_CLAIMS)]


class Evidence(Message, frozen=True, tag="evd"):
    """Proof that `peer` equivocated, verifiable by all: signed items in the format of a kind of `starling.robust.evidence`. Since 1.1."""

    kind: Annotated[str, Meta(max_length=32)]  # unknown ones are ignored
    peer: PeerId
    a: Annotated[bytes, Meta(max_length=MAX_PROOF_BYTES)]
    b: Annotated[bytes, Meta(max_length=MAX_PROOF_BYTES)]


class Beacon(Message, frozen=True, tag="bcn"):
    """The creator's signature for an epoch of ranks (`starling.gossip.overlay.beacon`), possibly forwarded. Since 1.1."""

    epoch: Counter
    signature: Signature


class BeaconQuery(Message, frozen=True, tag="bcq"):
    """Request for the beacons of `epoch` and of those after it; no answer if none is known. Since 1.1."""

    epoch: Counter


class DialMe(Message, frozen=True, tag="dme"):
    """Request to dial the sender at the host of its connection and this port. Since 1.1."""

    nonce: Counter
    port: Annotated[int, Meta(ge=1, le=65535)]


class Dialed(Message, frozen=True, tag="dmd"):
    """Answer to DialMe: the host of the connection, and whether the peer itself answered there. Since 1.1."""

    nonce: Counter
    seen: Annotated[str, Meta(max_length=64)]
    reached: bool


class StopVote(Message, frozen=True, tag="stp"):
    """A vote to stop training or not, by the sender's own evaluations (`pace.stop_after`). Since 1.2."""

    round: Counter  # rounds done at its last evaluation
    stop: bool


class ManifestQuery(Message, frozen=True, tag="mq"):
    """Request for the manifest whose hash is `swarm`."""

    swarm: SwarmId


class ManifestReply(Message, frozen=True, tag="mr"):
    """Canonical manifest bytes, empty if unknown; the receiver checks the hash."""

    swarm: SwarmId
    manifest: Annotated[bytes, Meta(max_length=64 << 10)]


class StateQuery(Message, frozen=True, tag="sq"):
    """Request for an offer of a model state, or of the outer parameters with a digest."""

    nonce: Counter
    outer: Annotated[bytes, Meta(max_length=8)] = b""  # since 1.5


class StateOffer(Message, frozen=True, tag="so"):
    """A snapshot stored for a while: its id, round, size and `starling.gossip.chunks.root`. `size` 0: none now."""

    nonce: Counter
    snapshot: Counter
    round: Counter
    size: Counter
    digest: Annotated[bytes, Meta(max_length=32)]
    schema: Annotated[bytes, Meta(max_length=32)]  # digest of parameter names and shapes; must equal the receiver's


class ChunkQuery(Message, frozen=True, tag="cq"):
    """Bytes of a snapshot from `offset`, at most MAX_CHUNK_BYTES."""

    snapshot: Counter
    offset: Counter


class Chunk(Message, frozen=True, tag="ck"):
    """The bytes; empty means the snapshot is no longer stored."""

    snapshot: Counter
    offset: Counter
    data: Annotated[bytes, Meta(max_length=MAX_CHUNK_BYTES)]


class DigestsQuery(Message, frozen=True, tag="dq"):
    """Request for the digests of a snapshot's chunks from this offset in their list, in bytes, at most MAX_CHUNK_BYTES of them."""

    snapshot: Counter
    offset: Counter


class Digests(Message, frozen=True, tag="ds"):
    """A part of the list; empty means the snapshot is no longer stored."""

    snapshot: Counter
    offset: Counter
    data: Annotated[bytes, Meta(max_length=MAX_CHUNK_BYTES)]


class StageQuery(Message, frozen=True, tag="seq"):
    """A newcomer's question to a crew: which stage is needed? Since 1.3."""

    nonce: Counter


class StageReply(Message, frozen=True, tag="sea"):
    """The stage that is needed most, reserved for the requester for a while. Since 1.3."""

    nonce: Counter
    stage: Stage


class Waits(msgspec.Struct, frozen=True, array_like=True):
    """A signed statement of a stage that waits for a result or a part (`starling.gossip.pipeline.waiting`). Since 1.5."""

    stage: Stage
    turn: Counter
    step: Counter
    done: Annotated[int, Meta(ge=0, le=(2 << 20) + MAX_STAGES)]  # tasks done, and then parts there, which say what it lacks
    signature: Annotated[bytes, Meta(max_length=64)] = b""


class Ready(Message, frozen=True, tag="rdy"):
    """To all stages of a crew: this one's stored states (starling.gossip.pipeline.meeting), so all continue from the same. Since 1.3."""

    crew: Digest  # digest of the current crew: peers and incarnations, in order
    turn: Counter  # turn of the crew, which rises with every meeting; a later one ends the current work
    round: Counter
    step: Counter
    left: Counter
    evaluate: bool  # the next thing to do is an evaluation, no local step
    points: Annotated[tuple[Counter, ...], Meta(max_length=MAX_POINTS)] = ()
    copies: Annotated[tuple[Counter, ...], Meta(max_length=MAX_POINTS)] = ()
    safe: Counter = 0
    batches: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    freed: Annotated[tuple[Stage, ...], Meta(max_length=MAX_STAGES)] = ()  # stages that the sender frees. Since 1.4
    waits: Annotated[tuple[Waits, ...], Meta(max_length=MAX_STAGES)] = ()  # the sender's requests what it lacks. Since 1.5
    answers: bool = False  # sent to one whose own came twice, and needs no answer itself. Since 1.5
    signature: Annotated[bytes, Meta(max_length=64)] = b""  # of what it says at a meeting (starling.gossip.pipeline.minutes). Since crew 2
    heard_at: Counter = 0  # turn of the last meeting that the sender concluded. Since crew 2
    heard: Annotated[bytes, Meta(max_length=16)] = b""  # digest of what it heard there. Since crew 2


class Said(msgspec.Struct, frozen=True, array_like=True):
    """What a stage said at a meeting, with its signature, as another passes it on. Since crew 2."""

    stage: Stage
    ready: Ready


class Minutes(Message, frozen=True, tag="min"):
    """To a stage that heard other things at a meeting, or not all: what the sender heard there. Since crew 2."""

    crew: Digest
    turn: Counter
    said: Annotated[tuple[Said, ...], Meta(max_length=MAX_STAGES)]


class Forward(Message, frozen=True, tag="fwd"):
    """To the next stage: the activation of a micro-batch (starling.gossip.compress.activations), with its labels. Since 1.3."""

    crew: Digest
    turn: Counter
    step: Counter  # local steps done before this one
    micro: Annotated[int, Meta(ge=0, le=1 << 20)]
    payload: Annotated[bytes, Meta(max_length=MAX_ACTIVATION_BYTES)]
    labels: Annotated[bytes, Meta(max_length=MAX_LABEL_BYTES)]


class Backward(Message, frozen=True, tag="bwd"):
    """To the previous stage: the gradient of that activation. Since 1.3."""

    crew: Digest
    turn: Counter
    step: Counter
    micro: Annotated[int, Meta(ge=0, le=1 << 20)]
    payload: Annotated[bytes, Meta(max_length=MAX_ACTIVATION_BYTES)]


class StepReport(Message, frozen=True, tag="tol"):
    """To all stages: this one's part of a finished step (starling.gossip.pipeline.stage.Part). Since 1.3."""

    crew: Digest
    turn: Counter
    step: Counter
    squares: Annotated[float, Meta(ge=0.0)]
    loss: float = 0.0
    value: float = 0.0
    samples: Counter = 0
    fine: bool = True


class Piece(Message, frozen=True, tag="pce"):
    """Bytes of the state of `stage` after `step` local steps: to the stage that stores a copy, or back from it. Since 1.3."""

    crew: Digest
    stage: Stage
    step: Counter
    size: Counter  # size of the whole state
    offset: Counter
    data: Annotated[bytes, Meta(max_length=MAX_CHUNK_BYTES)]


class PieceStored(Message, frozen=True, tag="kpt"):
    """The whole state has arrived and is stored. Since 1.3."""

    crew: Digest
    stage: Stage
    step: Counter


_Membership = Hello | Probe | Acknowledge | ProbeFor | Spread | Compare | Want | Sync | Farewell
Control = _Membership | Revoked | Attestations | Evidence | Beacon | BeaconQuery | DialMe | Dialed | StopVote
PairwiseMessage = Request | Response | Ack | Busy | Solicit | Reset | Close | Closed | Check
PulledMessage = Pull | Pulled | NotNow | Wake | Relay | Relayed
State = ManifestQuery | ManifestReply | StateQuery | StateOffer | ChunkQuery | Chunk | DigestsQuery | Digests | StageQuery | StageReply
Crew = Ready | Minutes | Forward | Backward | StepReport | Piece | PieceStored
