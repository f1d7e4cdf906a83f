"""Every key a person can set, with its meaning, default and bounds. Defaults live here and nowhere else.

`Manifest` is what a whole swarm agrees on (signed, content-addressed); `NodeConfig` is one volunteer's own.
Loading, `--set` and the error lines are in `node/config/toml.py`.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from starling.gossip.bounds import AtLeastOne, Count, Degree, NonNegative, Positive, PositiveShare, Share, ShareBelowOne, WeightRule
from starling.gossip.catalogue import Scalar
from starling.node.config.parts import PartSection, Section

Preset = Literal["custom", "vouched", "open"]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
"""Of a part: built in, of an installed package, or "module:Class"; `starling.gossip.catalogue`."""
ByzantineFraction = Annotated[float, Meta(ge=0, lt=0.5)]
Seconds = Annotated[float, Meta(ge=0.01, le=3600)]
Long = Annotated[float, Meta(ge=0.1, le=86_400)]
"""Seconds of what a machine does now and then."""
Rate = Annotated[int, Meta(ge=0, le=2**62)]
"""Bytes a second."""
Places = Annotated[int, Meta(ge=1, le=1 << 16)]
FORMAT: Literal[1] = 1
"""Of manifests and scenarios: which keys there are, and what their bytes mean."""
FINGERPRINT_LINES = 200
FINGERPRINT_CHARACTERS = 200  # of a line
Fingerprint = Annotated[
    tuple[Annotated[str, Meta(max_length=FINGERPRINT_CHARACTERS, pattern=r"^[ -~]*$")], ...], Meta(max_length=FINGERPRINT_LINES)
]
Patterns = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[!-~]*$")], ...], Meta(max_length=64)]
"""Of names, with * for any letters."""


class TaskSection(PartSection, frozen=True):
    """What is learned. All other keys are parameters of the task's constructor, e.g. model = "cnn"."""

    SECTION = "task"
    kind: Name = "digits"
    """digits, images, text, synthetic, quadratic, diagonal, logistic, or `module:function` of something installed; docs/extending.md.
    script: what its members' own training scripts train, who begin with `starling.Swarm`."""
    batch_size: Annotated[int, Meta(ge=1, le=1 << 16)] = 32
    """Samples per local step."""
    start: Annotated[str, Meta(max_length=1024)] = ""
    """A safetensors file of the model that all nodes begin with, as `starling export` writes it; "": a random one. `starling create` puts
    its digest there, and members join with `--set start=FILE`. In a swarm of scripts, which needs one, they get it from each other."""
    fingerprint: Fingerprint = ()
    """What nodes compare of a task that is not built in: version, metric, loss, parameters of the model; filled by `starling create`."""
    buffers: Literal["local", "average"] | Patterns | None = None
    """What becomes of the model's buffers outside of normalisation layers (codebooks, normalisers, memory banks). local: they stay at
    their node. average: those of floats are averaged with the model. Or the names of those that are, as "codebook*"; the others stay, those
    after a ! without a note. Left out: local, with a note when training changes one."""
    any_base: bool = False
    """Members may have other values in frozen parameters than the creator: a base of their own, which nobody compares."""


class PartitionSection(PartSection, frozen=True):
    """How built-in data are split among nodes; a node with `--data` of its own uses all of it."""

    SECTION = "partition"
    kind: Literal["iid", "dirichlet", "by_label", "by_file", "by_key"] = "dirichlet"
    """iid: at random. dirichlet: labels in unequal shares. by_label: few labels each. by_file, by_key: a file, or one author's samples,
    stays together (tasks that know such)."""
    shards: AtLeastOne = 8
    """How many parts are cut. A node takes part `shard` of its own config, or one derived from its peer id."""


class OptimizerSection(PartSection, frozen=True):
    """The local optimiser. Of those of torch.optim but sgd and the family of adam, all other keys are passed to the class."""

    SECTION = "optimizer"
    kind: Name = "sgd"
    """Of torch.optim: sgd, adamw, adam, nadam, radam, adamax, adagrad, adadelta, rmsprop, rprop, asgd, adafactor, muon."""
    lr: Positive = 0.02
    """Length of a local step, before `schedule`."""
    schedule: Literal["constant", "cosine", "linear", "exponential"] = "cosine"
    """Over `pace.rounds`; constant where rounds = 0 (endless)."""
    warmup: ShareBelowOne = 0.0
    """Share of the rounds in which lr climbs linearly from 0."""
    floor: PositiveShare = 0.05
    """The schedule ends at floor · lr."""
    clip_norm: Positive | None = None
    """A local step's gradient is shortened to this Euclidean norm, before corrections; left out: never."""
    sam: Share = 0.0
    """ρ of sharpness-aware steps: a second gradient is taken at x + ρ g/‖g‖; .05 to .2 where nodes have few samples. 0: off."""
    gradient: Literal["plain", "optimistic", "extragradient"] = "plain"
    """sgd: what a step goes along. For min-max problems, in which plain steps circle: optimistic, twice the gradient less the last one, or
    extragradient, the one after a trial step."""


class MixSection(PartSection, frozen=True):
    """How models are mixed."""

    SECTION = "mix"
    kind: Name = "pet"
    """The algorithm; docs/algorithms.md compares them. gather: by a rule of `robust`, among members one need not trust.
    sparse_outer: the fewest bytes, where data are split evenly. seeds: a byte a local step and no gradients, for a trained model."""
    theta: Annotated[float, Meta(gt=0, le=0.5)] = 0.5
    """clock pace: mixing weight of a pairwise exchange. In steps pace the overlay gives the weights."""
    clip_norm: NonNegative = 10.0
    """Both ends clip the exchanged difference to this Euclidean norm; 0 is off. Not where models are pulled or messages swapped."""
    defended: bool = True
    """pet, moments, dsgd, quasi_global, a2cid2: each node bounds the differences of a peer's model by those of its other peers, and
    takes nothing for some rounds of who is far again and again. false: what a peer shows is taken, up to clip_norm. docs/robustness.md."""
    typical_samples: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    """Training samples of a node that counts as one: one with m times as many counts m times as much in what is learned, 1/4 to 4.
    Left out: all nodes count the same. Not where models are pulled."""
    personal: Patterns = ()
    """Names of parameters that are never exchanged and are each node's own, e.g. ["head.*"]; * is any letters. docs/algorithms.md."""
    turns: Patterns = ()
    """dsgd: names of blocks of parameters of which each round trains and exchanges one, in turn, e.g. ["*lora_B*", "*lora_A*"]:
    for adapters, whose factors must not be averaged at once. (): all of them in every round."""
    own: Annotated[float, Meta(ge=0, le=0.5)] = 0.0
    """dsgd: share of a node's samples set aside, by whose loss it takes none, half or all of the step of each exchange: a model
    of its own. 0: all of every step."""


class OverlaySection(PartSection, frozen=True):
    """Which members exchange with which."""

    SECTION = "overlay"
    kind: Name = "sticky"
    """The graph; docs/algorithms.md compares them. pull: every node asks k members that it drew itself, for mix.kind = gather."""
    rerank_every: Count = 0
    """Rounds after which members are ranked anew, so that no member chooses its neighbors; 0: never."""
    weights: WeightRule | Literal["lazy"] | None = None
    """Rule for mixing weights; left out, the kind's own. lazy: half of it, for every kind; the others where degrees differ."""
    average_every: Count = 0
    """steps pace: after every so many rounds with local steps an average of all, by a sweep of base-(k+1). It is exact with
    compress.select = full and identity for request and response; else what they round or leave out stays between models. 0: none."""
    average_k: Degree = 1
    """average_every: most peers a node exchanges with in one round of a sweep."""
    overlap: bool = False
    """average_every: local steps go on during a sweep."""


class RobustSection(PartSection, frozen=True):
    """How a node combines what it pulls from peers it need not trust (mix.kind = "gather")."""

    SECTION = "robust"
    PARTS = ("rule", "before")
    rule: Name = "cs_nnm"
    """mean, median, trimmed_mean, meamed, krum, multi_krum, bulyan, geometric_median, mda, centered_clip, sac, cs_plus, cs_nnm,
    clipped_gossip, norm_bound, nna, ubar, balance, bridge, flag, foolsgold; docs/robustness.md compares them."""
    before: Name | None = None
    """What is applied to the vectors before the rule: nnm, each mixed with its nearest, or bucketing, averages of buckets."""


class AdmissionSection(PartSection, frozen=True):
    """Who may be a member."""

    SECTION = "admission"
    kind: Literal["open", "invite", "allow"] = "open"
    """open: anyone with a proof of work. invite: members with an invitation of the creator or of an invited member. allow: the listed."""
    per_prefix: Annotated[int, Meta(ge=0, le=64)] = 0
    """overlay.kind = pull: most of those asked in a round that are from one IPv4 /24, IPv6 /48 or operator; 0: any. Loopback and private
    addresses do not count."""


class CompressSection(PartSection, frozen=True):
    """What crosses the wire."""

    SECTION = "compress"
    PARTS = ("select",)
    select: Name = "budget"
    """budget: full vectors where they fit the byte budget of an exchange, else a seeded mask as large as fits.

    Or full, fragment, mask, random_k, top_k, top_k_sampled, chunk_top_k, layered, cocktail, drift_top_k, dct_top_k, low_rank, or a
    package's; docs/algorithms.md compares them.
    """
    request: Name = "fp16"
    """Codec of the initiator's values: identity, fp16, bf16, or any of those of `response`."""
    response: Name = "int4"
    """Codec of the difference that both ends apply, or of messages that are swapped or sent to all.

    identity, fp16, bf16, int8 … int2 (by chance), int8_nearest … int2_nearest, qsgd127 … qsgd1, sign, spread1 and spread2 (of largest
    coordinates), fp8_e4m3, fp8_e5m2, fp4_e2m1, fp4_e3m0, two or three steps of one as sign_x2, int2_nearest_x3, int3_x2, int4_x2 …,
    or a package's.
    """


class PaceSection(PartSection, frozen=True):
    """When nodes compute and when they exchange."""

    SECTION = "pace"
    kind: Literal["steps", "clock", "sampled"] = "steps"
    """steps: rounds of so many local steps, and peers wait for each other. clock: an exchange per slot of time, without rounds.
    sampled: a few train and a few average in each round, while all others sleep; for mix.kind = gather, among members one trusts."""
    local_steps: Annotated[int, Meta(ge=1, le=100_000)] = 20
    """steps: local steps of a round. clock: a guess of how many fit between two exchanges, until measured."""
    gossips: Annotated[int, Meta(ge=1, le=8)] = 1
    """steps: rounds of which only the first has local steps; the others average what they gave with further peers."""
    rounds: Count = 200
    """The run's length in rounds (slots in clock pace); 0 is endless."""
    quorum: AtLeastOne = 2
    """Members, in a swarm of crews whole crews, that must be there before training begins; later a lone one goes on."""
    slot_s: Seconds = 1.0
    """clock: seconds between a node's exchanges. steps: the time in which one exchange should be over, for the byte budget; with overlap
    at most that of a round's local steps."""
    min_wait_s: Seconds = 0.25
    """The adaptive deadline of an exchange, counted from when peers as slow as half our speed are ready, never falls below this."""
    ramp_rounds: Count = 20
    """A late joiner's lr climbs to its full value over this many rounds."""
    overlap: bool = False
    """steps: a round's exchanges run beside the local steps of the next, which begin from the model before them."""
    evaluate_every: AtLeastOne = 20
    """Rounds between evaluations on held-out data."""
    stop_after: Count = 0
    """Evaluations without a better value after which a node votes to stop; when two thirds of the members do, all stop. 0: never."""


class MembershipSection(Section, frozen=True):
    """The failure detector's clockwork."""

    probe_s: Annotated[float, Meta(ge=0.1, le=3600)] = 1.0
    """Seconds between probes of a random member."""
    timeout_s: Annotated[float, Meta(ge=0.05, le=600)] = 0.5
    """Shortest wait for an acknowledgement before asking others to probe, in seconds; up to nine times as long for far members."""
    suspicion_s: Annotated[float, Meta(ge=0.1, le=3600)] = 2.0
    """Shortest time that a suspected member has to refute, in seconds; three times as long while one member accuses it."""
    sync_s: Annotated[float, Meta(ge=0.5, le=3600)] = 5.0
    """Seconds between anti-entropy exchanges with a random member."""
    helpers: Annotated[int, Meta(ge=0, le=8)] = 2
    """Members asked for an indirect probe."""


class CrewSection(Section, frozen=True):
    """Several machines, each with consecutive blocks of the model, as one member: docs/crews.md."""

    stages: Annotated[int, Meta(ge=1, le=16)] = 1
    """Machines of a crew; 1: every node holds the whole model."""
    micro_batches: Annotated[int, Meta(ge=1, le=256)] = 8
    """Parts of a batch that are under way at once."""
    warm_up: Annotated[int, Meta(ge=0, le=64)] = 1
    """Forwards ahead of the textbook's, for each stage that follows, that hide the time of a line; `starling plan` says how many do."""
    activation: Literal["float32", "bfloat16", "int8", "int4", "delta8", "delta4", "delta2"] = "int8"
    """How activations travel. delta: the change since the sample was last sent, for tasks that see the same samples many times."""
    gradient: Literal["float32", "bfloat16", "int8", "int4"] = "int8"
    """How their gradients travel back; whole numbers are rounded by chance."""
    cache_bytes: Annotated[int, Meta(ge=0, le=1 << 40)] = 1 << 28
    """activation = delta: for what was last sent of samples, at each end of a line."""
    keep_rounds: AtLeastOne = 1
    """Rounds after which each stage's state is sent to the stage before, which keeps it for the case that this one is lost."""
    speeds: Annotated[tuple[Positive, ...], Meta(max_length=16)] = ()
    """Of the machines of the stages, in any unit: blocks are cut so that the slowest stage is as fast as can be; (): all alike."""
    memory_gb: Annotated[tuple[Positive, ...], Meta(max_length=16)] = ()
    """That the machines of the stages have for their blocks, in 10⁹ bytes; (): as much as it takes."""


class Manifest(Section, frozen=True):
    """What the swarm is. Its hash is the swarm id."""

    name: Annotated[str, Meta(min_length=1, max_length=64)] = "starling"
    """For people."""
    format: Literal[1] = FORMAT
    """Version of the keys of a manifest."""
    protocol: Literal[1] = 1
    """Version of the messages between nodes."""
    seed: Annotated[int, Meta(ge=0, le=2**62)] = 0
    """Seed of all shared randomness: initial model, overlay, masks, partition."""
    founder: Annotated[str, Meta(max_length=128)] = ""
    """Peer id of the creator; filled by `starling create`."""
    founded_ms: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """Unix time of the creation; filled by `starling create`."""
    signature: Annotated[str, Meta(max_length=128)] = ""
    """Creator's Ed25519 signature (hex) over all other fields; filled by `starling create`."""
    task: TaskSection = msgspec.field(default_factory=TaskSection)
    partition: PartitionSection = msgspec.field(default_factory=PartitionSection)
    optimizer: OptimizerSection = msgspec.field(default_factory=OptimizerSection)
    mix: MixSection = msgspec.field(default_factory=MixSection)
    overlay: OverlaySection = msgspec.field(default_factory=OverlaySection)
    compress: CompressSection = msgspec.field(default_factory=CompressSection)
    pace: PaceSection = msgspec.field(default_factory=PaceSection)
    membership: MembershipSection = MembershipSection()
    robust: RobustSection = msgspec.field(default_factory=RobustSection)
    admission: AdmissionSection = msgspec.field(default_factory=AdmissionSection)
    crew: CrewSection = CrewSection()
    preset: Preset = "custom"
    """vouched, open: values of many keys at once, for members one knows and for strangers; docs/robustness.md lists them."""
    byzantine_fraction: ByzantineFraction = 0.0
    """Fraction of Byzantine members that the swarm is meant to tolerate; more than its rule tolerates is refused."""


class LimitsSection(Section, frozen=True):
    """What peers may cost this machine."""

    connections: Places = 128
    """At a time; when they are full the one of least use gives way, or the newcomer is turned away."""
    connections_per_ip: Places = 64
    """Of these from one IP address, private and loopback ones too: raise it for many nodes on one machine."""
    inbox_frames: Places = 64
    """Frames of one lane waiting to be handled, of one peer; more wait at their sender."""
    frames_per_s: Annotated[float, Meta(ge=1, le=1e6)] = 200.0
    """Sustained frames a second accepted from one peer (bursts of 4x); more are dropped and counted."""


class PrivacySection(Section, frozen=True):
    """What this volunteer's data may reveal. docs/privacy.md says what it does, and what not."""

    noise: NonNegative = 0.0
    """Standard deviation of the noise on every local step's gradient, in units of `clip_norm`; 0 is off."""
    clip_norm: Positive = 1.0
    """Every sample's gradient is clipped to this norm."""
    delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-5
    """Of (epsilon, delta) differential privacy."""
    max_epsilon: NonNegative = 0.0
    """Training stops before more than this is spent; 0: no limit."""
    exchange_noise: NonNegative = 0.0
    """Standard deviation of the noise on each number that is sent to a peer; 0 is off."""


class NumericsSection(Section, frozen=True):
    """How this machine computes its local steps. Other members neither see it nor need the same."""

    micro_batch: Annotated[int, Meta(ge=1, le=1 << 16)] | None = None
    """Samples of a batch that are computed at a time, to save memory; left out: all, and half as many whenever memory runs out."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the operations that torch.autocast casts in a local step. Parameters, optimiser and exchanges keep float32. float16: with loss
    scaling."""
    activation_checkpointing: bool = False
    """Compute the model's blocks again in the backward pass instead of keeping what they computed: less memory, about a third more work."""
    noise_every: AtLeastOne | None = None
    """Local steps between two measurements of the gradient noise scale, which status shows; left out: none."""
    compile: bool = False
    """Compile the loss by torch.compile, for up to minutes at the start. Where that fails steps are done without; an event says why."""
    moments: Literal["float32", "bfloat16", "int8"] = "float32"
    """In which adam, adamw, nadam and radam keep their moments: bfloat16 takes half the memory, int8 a quarter. docs/memory.md."""


class MetricsSection(Section, frozen=True):
    """Figures of this node for Prometheus, by HTTP. docs/observing.md lists them."""

    listen: Annotated[str, Meta(max_length=256)] = ""
    """Where they are served: 127.0.0.1:9464 is for this machine alone, :9464 for all who can reach it, [::1]:9464; "" is off."""


class RecordSection(Section, frozen=True):
    """A record of the run in the run directory, which the terminal UI replays and pandas reads. docs/observing.md says how."""

    every_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    """Seconds between two lines of record.jsonl, 0.1 at the least; 0 is off."""
    max_bytes: Annotated[int, Meta(ge=4 << 20, le=1 << 40)] = 64 << 20
    """Of record.jsonl and record.jsonl.1 together: when they are full the older half is dropped."""


class NodeConfig(Section, frozen=True):
    """One volunteer's own settings. Stored in the run directory as node.toml."""

    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0")
    """Multiaddrs to listen on; port 0 picks one, which is then kept. A version of IP that the machine lacks is left out."""
    announce: tuple[str, ...] = ()
    """Multiaddrs to tell others instead of the listening ones (behind port forwarding)."""
    bootstrap: tuple[str, ...] = ()
    """Multiaddrs with /p2p/ID of members to join through; filled from the invite."""
    data: str = ""
    """The volunteer's own data (file or folder); empty: the task's built-in data, one shard of it."""
    start: str = ""
    """Where this machine has the file of the model that the swarm begins with, if the manifest's task.start says that there is one."""
    trust: bool = False
    """Agree that the manifest names code (module:function) or files (task.path) of this machine."""
    shard: Annotated[int, Meta(ge=-1, le=10**6)] = -1
    """Which part of built-in data; -1 derives it from the peer id."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where the engine computes; auto takes a GPU if there is one."""
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Torch threads of local steps; 0: as many as are fastest at present. With a number equal runs give equal bits."""
    script: bool = False
    """Local steps are done by a training script of yours, which meets the node through `starling.Swarm` and sets this."""
    stage: Annotated[int, Meta(ge=-1, le=15)] = -1
    """In a swarm of crews: which part of the model this machine holds; -1: the one that is wanted most when it joins."""
    ranks: Annotated[int, Meta(ge=1, le=64)] = 1
    """Processes of this machine, on a GPU each where there are several, that share the computing of each batch: an island."""
    nice: Annotated[int, Meta(ge=0, le=19)] = 0
    """Lowers the priority of the engine's process by so much, so that other programs of the machine go first."""
    active: Annotated[str, Meta(max_length=256)] = ""
    """Hours of local time with local steps, as 22:00-07:00, 12:00-13:30; else the node is paused, as by `starling pause`. "": always."""
    pause_on_battery: bool = False
    """Paused also while the machine runs on battery."""
    up_bytes_per_s: Rate = 0
    """Cap on what is sent; 0 is none. The CLI takes 10mbit and the like."""
    down_bytes_per_s: Rate = 0
    """Cap on what is received; 0 is none."""
    lan: bool = True
    """Find members on the local network by multicast DNS, and be found there; needs no address of the invite to answer."""
    map_port: bool = False
    """Ask the router by UPnP, else by NAT-PMP, to lead a port to this node, and give it back at the end."""
    relay: Literal["off", "control", "small"] = "control"
    """What this node, if others can dial it, carries for members that nobody can dial: nothing, their control messages (32 kB/s a member,
    128 kB/s in all), or small exchanges too (256 kB/s, 1 MB/s)."""
    evaluate_alone: bool = False
    """steps pace: evaluate the model also as it is before the round's exchanges, which run meanwhile; status shows both."""
    checkpoint_s: Long = 30.0
    """Seconds between checkpoints."""
    engine_timeout_s: Long = 300.0
    """An engine that answers nothing for so long is restarted from its last checkpoint."""
    linger_s: NonNegative = 30.0
    """After the last round: seconds to keep answering those who are still at it."""
    limits: LimitsSection = LimitsSection()
    operator: Annotated[str, Meta(max_length=64)] = ""
    """Who runs this node, the same word on all of one's nodes: peers do not take too many of one operator for neighbors."""
    memory_check: bool = True
    """When it joins: refuse where less memory is free than the task is expected to take. `starling join --anyway` sets it to false."""
    privacy: PrivacySection = PrivacySection()
    numerics: NumericsSection = NumericsSection()
    attack: Annotated[str, Meta(max_length=64)] = ""
    """Experiments only: be Byzantine in this way, see docs/attacks.md. Needs `attack_agreed`; status and events say so."""
    attack_params: dict[str, Scalar] = msgspec.field(default_factory=dict)
    """Passed to the attack."""
    attack_agreed: bool = False
    """You know what `attack` does, and the swarm is yours."""
    metrics: MetricsSection = MetricsSection()
    record: RecordSection = RecordSection()
