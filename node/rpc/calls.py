"""The calls between daemon and engine: each is a request with exactly one reply. Torch-free, so that the daemon can import it.

The engine does one local step at a time while training is granted and looks for calls in between, so that a call waits for at
most one local step. In steps pace a granted round's `Train` is answered when its steps are done; then the vector is frozen and
effects of exchanges gather until `Mix`. In clock pace (`Free`) effects are added to the live vector at once.

Shapes: d parameters.
"""

from typing import Any, Generic, Literal

import msgspec
from typing_extensions import TypeVar

from starling.gossip.catalogue import Scalar
from starling.gossip.exchange.calls import (
    Answer,
    Answered,
    Apply,
    Call,
    Commit,
    Divergence,
    Done,
    Drop,
    EdgeCall,
    Far,
    Offer,
    Offered,
    Publish,
    Published,
    Refused,
    Revoke,
    Settle,
    VerifyEarlier,
    VerifyUpdate,
)
from starling.node.config.schema import Manifest, NumericsSection, PrivacySection
from starling.node.status.snapshot import EngineFigures

__all__ = [
    "Abandon",
    "Advance",
    "Advanced",
    "Agree",
    "Agreed",
    "Answer",
    "Answered",
    "Apply",
    "Call",
    "ChunkRead",
    "Commit",
    "Consider",
    "ConsiderOuter",
    "Divergence",
    "Done",
    "Drop",
    "Evaluate",
    "Evaluated",
    "Far",
    "Finish",
    "Free",
    "Limit",
    "Mix",
    "Offer",
    "Offered",
    "Open",
    "Opened",
    "Point",
    "Pointed",
    "Publish",
    "Published",
    "ReadChunk",
    "ReadPoint",
    "Refused",
    "ReplaceOuter",
    "Reply",
    "Request",
    "Retreat",
    "Revoke",
    "Save",
    "Settle",
    "Snapshot",
    "SnapshotInfo",
    "SnapshotOuter",
    "Stop",
    "Summary",
    "Summed",
    "Train",
    "Trained",
    "VerifyEarlier",
    "VerifyUpdate",
]


M = TypeVar("M", Manifest, dict[str, Any], default=Manifest)


class Open(Call, Generic[M], frozen=True, tag="open"):
    """First call: build task, data, model, mixer; resume from `checkpoint` if the file exists. -> Opened"""

    manifest: M  # the swarm's agreement; on its way plain data, as the types of its sections depend on the parts that they name
    data: str  # the owner's own data path, or ""
    shard: int  # number of the shard of built-in data
    device: str  # auto, cpu, cuda, mps
    threads: int  # torch's threads in local steps, 0 = the fastest number, up to torch's choice
    checkpoint: str  # path of the file
    node: str  # stable label of this node (peer id): seeds its generators
    privacy: PrivacySection = PrivacySection()  # limits on what this node's data may reveal
    attack: str = ""  # attack; "" for none
    attack_params: dict[str, Scalar] = msgspec.field(default_factory=dict)
    # folder in which a `module:Class` of the manifest, or of `attack`, is looked for after installed packages; "" without consent
    code: str = ""
    start: str = ""  # path of the file whose digest is `task.start` of the manifest; "" for none
    numerics: NumericsSection = NumericsSection()  # memory and precision of local steps
    nice: int = 0  # amount by which a separate process lowers its priority, 0 … 19
    ranks: int = 1  # processes that share the computing of each batch
    stage: int = -1  # stage of a crew, of which only the blocks are made; -1: the whole model
    script: bool = False  # local steps are done by a script, which connects in the checkpoint's folder


class Opened(Call, frozen=True, tag="opened"):
    """Reply to Open. `round` and the local steps of `figures` are the checkpoint's, or 0 for a fresh start; `resumed` says which."""

    parameters: int
    schema: bytes
    metric: str
    higher_is_better: bool
    device: str
    samples: int
    resumed: bool
    round: int
    figures: EngineFigures = EngineFigures()
    best: float | None = None  # value of the best model so far, and the rounds it had done; None before the first evaluation
    best_round: int | None = None
    batches: int = 0  # held-out batches that the first stage of a crew evaluates
    most_state_bytes: int = 0  # bytes of the largest stage's state, in a crew
    damaged: str = ""  # why the newest checkpoint was not read, where the one before it was


class Train(Call, frozen=True, tag="train"):
    """Steps pace: do the `steps` local steps of `round`, freeze, reply. -> Trained

    `ahead`: exchanges of the previous round, on its frozen vector, are still running; its Mix freezes the vector.
    """

    round: int
    steps: int
    # the averaging that its exchanges belong to, as in `starling.gossip.api.Phase`
    first: bool = True
    last: bool = True
    turn: int = 0
    ahead: bool = False


class Trained(Call, frozen=True, tag="trained"):
    """The local steps are done."""

    round: int  # theirs
    figures: EngineFigures  # figures after the steps; the distance in clock pace only, in steps pace it is in Done
    seconds: float  # they took
    undone: int = 0  # steps that produced non-finite numbers and were reverted
    halted: str = ""  # why this node's data are no longer used; "" while they are
    notes: tuple[str, ...] = ()  # changes that the engine made since the last figures, with reasons; one line each for the owner


class Free(Call, frozen=True, tag="free"):
    """Clock pace: train without pause (`on`) or stand still. `round` is the current slot, for the schedule. -> Trained since last Free"""

    on: bool
    round: int


class Mix(Call, frozen=True, tag="mix"):
    """Steps pace: add the gathered effects to the vector in canonical order and thaw. -> Done"""

    round: int
    # peers that were sent requests, with or without a response: an absent vector keeps its place
    requested: tuple[str, ...] = ()
    own: bool = True  # for pulled models: whether our own model is combined with them; otherwise this node adopts the others'


class Limit(Call, frozen=True, tag="limit"):
    """Do local steps on so many threads from now on, 0 as in Open. -> Done"""

    threads: int


class Evaluate(Call, frozen=True, tag="evaluate"):
    """Measure on held-out data, a slice between local steps at a time. -> Evaluated"""

    round: int = 0  # rounds done, which are noted if the model is the best so far
    keep: bool = True  # whether it may become the best model


class Evaluated(Call, frozen=True, tag="evaluated"):
    """The task's metric and mean loss over `samples`."""

    value: float
    loss: float | None  # None: there is no figure
    samples: int
    best: float | None = None  # as in Opened, including this evaluation; None also without a checkpoint beside which it is stored
    best_round: int | None = None
    others: dict[str, float] = msgspec.field(default_factory=dict)  # further metrics by name


class Save(Call, frozen=True, tag="save"):
    """Write the checkpoint (atomic, checksummed) and, if `export` is a path, the model alone as safetensors. -> Done or Refused"""

    export: str = ""
    best: bool = False  # export the best model so far, not that of now
    final: bool = False  # no rounds follow


class Snapshot(Call, frozen=True, tag="snapshot"):
    """Take a snapshot of the model for peers to fetch. -> SnapshotInfo, or Refused"""


class SnapshotOuter(Call, frozen=True, tag="snapshot_outer"):
    """Take a snapshot of the outer parameters of an earlier round with this digest. -> SnapshotInfo, or Refused if they are not stored"""

    outer: bytes


class SnapshotInfo(Call, frozen=True, tag="held"):
    """The snapshot: id, size in bytes, root and chunk digests (`starling.gossip.chunks`), round, and the parameters' schema digest."""

    snapshot: int
    size: int
    digest: bytes
    round: int
    schema: bytes
    digests: bytes


class ReadChunk(Call, frozen=True, tag="read"):
    """Read bytes of the snapshot. -> ChunkRead (empty if it was deleted)"""

    snapshot: int
    offset: int
    length: int


class ChunkRead(Call, frozen=True, tag="chunk"):
    """Bytes of a chunk."""

    data: bytes
    size: int = 0  # of all


class Consider(Call, frozen=True, tag="consider"):
    """Hold a fetched model (digest already checked) until Agree. -> Done, or Refused if it has another schema, or is a fourth"""

    peer: str
    round: int
    state: bytes  # b"" where it is in a file
    turn: int = 0  # models of other attempts are deleted
    file: str = ""  # may be deleted once this is answered


class ConsiderOuter(Call, frozen=True, tag="consider_outer"):
    """Hold outer parameters that the last Mix found wanting until ReplaceOuter. -> Done, or Refused as "peer": these are others"""

    peer: str
    digest: bytes
    state: bytes  # b"" where it is in a file
    file: str = ""  # may be deleted once this is answered


class ReplaceOuter(Call, frozen=True, tag="replace_outer"):
    """Continue from the next round on with the outer parameters that follow from those stored and ours. -> Done, or Refused: too few"""


class Agree(Call, frozen=True, tag="agree"):
    """Combine the stored models and install the result, if enough of them agree (`starling.robust.model_agreement`). -> Agreed"""

    against_own: bool = False  # only if they are nearer to each other than to this node's own


class Agreed(Call, frozen=True, tag="agreed"):
    """The result; the stored models are deleted."""

    round: int  # round of the installed model
    peers: tuple[str, ...]  # peers whose models were combined; none: nothing was installed
    outside: tuple[str, ...]  # peers that offered a model no honest member can have


class Advance(Call, frozen=True, tag="advance"):
    """A crew's forward of one micro-batch, of what the stage before sent; the first draws the batch of `step`. -> Advanced, or Refused"""

    crew: int
    step: int
    micro: int
    payload: bytes = b""
    labels: bytes = b""
    evaluate: bool = False  # micro-batches are those of held-out data, and nothing is stored for a backward


class Advanced(Call, frozen=True, tag="advanced"):
    """Output for the next stage; empty from the last one.

    over: what came was so many times as long as usual, and was shortened; 0: it was not.
    """

    payload: bytes
    labels: bytes
    over: float = 0.0


class Retreat(Call, frozen=True, tag="retreat"):
    """A crew's backward of a micro-batch. -> Advanced for the stage before, or Refused"""

    crew: int
    step: int
    micro: int
    payload: bytes = b""


class Summary(Call, frozen=True, tag="summary"):
    """Compute this stage's part after all micro-batches of a step. -> Summed"""


class Summed(Call, frozen=True, tag="summed"):
    """One stage's part of a step, as in `starling.gossip.pipeline.stage.Part`."""

    squares: float
    loss: float
    value: float
    samples: int
    fine: bool


class Finish(Call, frozen=True, tag="finish"):
    """Apply a crew's step, whose loss is known now; if not `fine`, it counts as undone. -> Done"""

    round: int
    scale: float  # scale of the gradient, in (0, 1]
    loss: float
    fine: bool
    steps: int  # local steps done including this one


class Abandon(Call, frozen=True, tag="abandon"):
    """Discard the results of a step so far. -> Done"""


class Point(Call, frozen=True, tag="point"):
    """A crew's states: store the current one, return to a stored one, adopt another machine's, or only list them. -> Pointed

    carry: the kept ones are of `crew` from now on, with which this stage goes on where it was.
    """

    action: Literal["look", "keep", "back", "take", "carry"]
    crew: int  # crew of these states; those of another crew are deleted
    step: int
    state: bytes = b""


class Pointed(Call, frozen=True, tag="pointed"):
    """States that are kept, by the local steps that made them, and bytes of the newest; `step` is of the state that the model is in."""

    step: int
    points: tuple[int, ...]
    size: int


class ReadPoint(Call, frozen=True, tag="read_point"):
    """Bytes of a kept state. -> ChunkRead (empty if it is no longer kept)"""

    step: int
    offset: int
    length: int


class Stop(Call, frozen=True, tag="stop"):
    """Save and end the process. -> Done, or Refused where it could not save; it ends all the same"""


Later = (
    Train
    | Free
    | EdgeCall
    | Publish
    | VerifyUpdate
    | VerifyEarlier
    | Mix
    | Limit
    | Evaluate
    | Save
    | Snapshot
    | SnapshotOuter
    | ReadChunk
    | Consider
    | Agree
    | ConsiderOuter
    | ReplaceOuter
    | Stop
    | Advance
    | Retreat
    | Summary
    | Finish
    | Abandon
    | Point
    | ReadPoint
)
Request = Open | Later
Reply = (
    Opened
    | Trained
    | Offered
    | Answered
    | Published
    | Evaluated
    | SnapshotInfo
    | ChunkRead
    | Agreed
    | Done
    | Refused
    | Advanced
    | Summed
    | Pointed
)
