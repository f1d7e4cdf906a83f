"""The words between daemon and engine: each call is a request with exactly one reply. Torch-free, so that the daemon can import it.

The engine does one local step at a time while training is granted and looks for calls in between, so that a call waits for at
most one local step. In steps pace a granted round's `Train` is answered when its steps are done; then the vector is frozen and
effects of exchanges gather until `Mix`. In clock pace (`Free`) effects are added to the live vector at once.

Shapes: d parameters.
"""

from __future__ import annotations

import msgspec

from starling.node.config.schema import Manifest, PrivacySection, Scalar


class Call(msgspec.Struct, frozen=True, array_like=True):
    """Base of all calls."""


class Open(Call, frozen=True, tag="open"):
    """First call: build task, data, model, mixer; resume from `checkpoint` if the file exists. -> Opened

    Args:
        manifest: what the swarm agreed on.
        data: the volunteer's own data or "".
        shard: part of built-in data.
        device: auto, cpu, cuda, mps.
        threads: torch threads, 0 = torch's choice.
        checkpoint: path of the checkpoint file.
        node: stable label of this node (peer id): seeds its own chance.
        privacy: what this node's data may reveal.
        attack, attack_params: how it lies; "" for not at all.
        code: folder in which a `module:Class` of the manifest is looked for after installed packages; "" without the owner's consent.
    """

    manifest: Manifest
    data: str
    shard: int
    device: str
    threads: int
    checkpoint: str
    node: str
    privacy: PrivacySection = PrivacySection()
    attack: str = ""
    attack_params: dict[str, Scalar] = {}
    code: str = ""


class Opened(Call, frozen=True, tag="opened"):
    """Reply to Open. `round` and `local_steps` are those of the checkpoint, 0 when fresh; `resumed` says which. `epsilon` as in Trained."""

    parameters: int
    schema: bytes
    metric: str
    higher_is_better: bool
    device: str
    samples: int
    resumed: bool
    round: int
    local_steps: int
    epsilon: float | None = None


class Train(Call, frozen=True, tag="train"):
    """Steps pace: do the `steps` local steps of `round`, freeze, reply. -> Trained

    Args:
        first, last, turn: the averaging that its exchanges belong to, as in `starling.gossip.api.Phase`.
    """

    round: int
    steps: int
    first: bool = True
    last: bool = True
    turn: int = 0


class Trained(Call, frozen=True, tag="trained"):
    """Mean loss of the steps done; `local_steps` is the total since the beginning of this node's training.

    `undone` of these steps left the finite numbers and were taken back; `loss` is nan if all were, or none was done.

    Args:
        epsilon: what this node's data have cost so far, at privacy.delta; None where steps are not noised.
        halted: why this node learns from its data no more; "" while it does.
        distance: clock pace: as in Done.
        gpu: share of the time that the GPU was busy, with whatever, 0 to 1; None where there is none or it is not known.
        gpu_memory_bytes: of it that the engine takes; None likewise.
    """

    round: int
    loss: float
    local_steps: int
    seconds: float
    undone: int = 0
    epsilon: float | None = None
    halted: str = ""
    distance: float | None = None
    gpu: float | None = None
    gpu_memory_bytes: int | None = None


class Free(Call, frozen=True, tag="free"):
    """Clock pace: train without pause (`on`) or stand still. `round` is the current slot, for the schedule. -> Trained since last Free"""

    on: bool
    round: int


class Offer(Call, frozen=True, tag="offer"):
    """Initiator: encode my values for transaction `seq` with `peer`. -> Offered

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
    budget_bytes: int
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
    """Initiator: decode the response to `seq` and apply +v. -> Done, or Refused (nothing applied)"""

    peer: str
    inc: int
    seq: int
    payload: bytes


class Commit(Call, frozen=True, tag="commit"):
    """Responder: apply −v of the pending `seq`. -> Done"""

    peer: str
    inc: int
    seq: int


class Drop(Call, frozen=True, tag="drop"):
    """Either end: forget the offer or pending `seq` without applying. -> Done"""

    peer: str
    inc: int
    seq: int


class Publish(Call, frozen=True, tag="publish"):
    """Encode the frozen vector of `round` for whoever asks. -> Published, or Refused where our own numbers cannot be sent"""

    round: int


class Published(Call, frozen=True, tag="published"):
    """The payload and its digest (`starling.gossip.exchange.attestation`)."""

    payload: bytes
    digest: bytes


class Hear(Call, frozen=True, tag="hear"):
    """Keep until Mix what a peer told of its vector. -> Done, or Refused if the payload is bad or not what the digest says"""

    peer: str
    digest: bytes
    payload: bytes


class Mix(Call, frozen=True, tag="mix"):
    """Steps pace: add the gathered effects to the vector in canonical order and thaw. -> Done

    Args:
        asked: whom we asked for vectors, whether they told or not: who is absent keeps its place.
    """

    round: int
    asked: tuple[str, ...] = ()


class Settle(Call, frozen=True, tag="settle"):
    """The edge was closed in order: its flow stays in c, revocable for a while. -> Done"""

    peer: str


class Revoke(Call, frozen=True, tag="revoke"):
    """The peer is gone, banned or reborn: delete its flow, settled ones too if `settled`, and anything pending. -> Done"""

    peer: str
    settled: bool


class Evaluate(Call, frozen=True, tag="evaluate"):
    """Measure on held-out data, a slice between local steps at a time. -> Evaluated"""


class Evaluated(Call, frozen=True, tag="evaluated"):
    """The task's metric and mean loss over `samples`."""

    value: float
    loss: float
    samples: int


class Save(Call, frozen=True, tag="save"):
    """Write the checkpoint (atomic, checksummed) and, if `export` is a path, the model alone as safetensors. -> Done or Refused"""

    export: str = ""


class Snapshot(Call, frozen=True, tag="snapshot"):
    """Hold the model as it is for peers to fetch. -> Held"""


class Held(Call, frozen=True, tag="held"):
    """Id, size in bytes, SHA-256 and round of the held snapshot, and the schema digest of the parameters."""

    snapshot: int
    size: int
    digest: bytes
    round: int
    schema: bytes


class ReadChunk(Call, frozen=True, tag="read"):
    """Bytes of the held snapshot. -> ChunkRead (empty if no longer held)"""

    snapshot: int
    offset: int
    length: int


class ChunkRead(Call, frozen=True, tag="chunk"):
    """The bytes."""

    data: bytes


class Consider(Call, frozen=True, tag="consider"):
    """Hold a fetched model (digest already checked) until Agree. -> Done, or Refused if it is none of ours, or a fourth

    Args:
        turn: models of another turn are held no more.
    """

    peer: str
    round: int
    state: bytes
    turn: int = 0


class Agree(Call, frozen=True, tag="agree"):
    """Make one of the models held and install it, if enough of them go together (`starling.robust.model_agreement`). -> Agreed"""


class Agreed(Call, frozen=True, tag="agreed"):
    """What came of it; the models are held no more.

    Args:
        round: of the installed model.
        peers: whose models it was made of; none: nothing was installed.
        outside: peers that no honest member can be, from what they offered.
    """

    round: int
    peers: tuple[str, ...]
    outside: tuple[str, ...]


class Stop(Call, frozen=True, tag="stop"):
    """Save and end the process. -> Done, or Refused where it could not save; it ends all the same"""


class Done(Call, frozen=True, tag="done"):
    """It is done.

    Args:
        clipped: of Apply and Commit, whether the difference was as long as the clip allows.
        held: of Mix where vectors are gathered, the peers whose vector the rule held back; None where it does not say.
        leaned: of Revoke, whether the flows that are left lean against what is gone: they are to go as well.
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


Request = (
    Open | Train | Free | Offer | Answer | Apply | Commit | Drop | Publish | Hear | Mix | Settle | Revoke | Evaluate
    | Save | Snapshot | ReadChunk | Consider | Agree | Stop
)  # fmt: skip
Reply = Opened | Trained | Offered | Answered | Published | Evaluated | Held | ChunkRead | Agreed | Done | Refused
