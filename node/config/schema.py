"""Every key a person can set, with its meaning, default and bounds. Defaults live here and nowhere else.

`Manifest` is what a whole swarm agrees on (signed, content-addressed); `NodeConfig` is one volunteer's own.
Loading, `--set` and the error lines are in `node/config/toml.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]
AtLeastOne = Annotated[int, Meta(ge=1)]
Scalar = str | int | float | bool
Preset = Literal["custom", "vouched", "open"]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
"""Of a part: built in, of an installed package, or "module:Class"; `starling.gossip.catalogue`."""
BadShare = Annotated[float, Meta(ge=0, lt=0.5)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: unknown keys are errors, keys are given by name."""


class TaskSection(Section, frozen=True):
    """What is learned."""

    kind: Name = "digits"
    """digits, images, text, synthetic, quadratic, diagonal, logistic, or `module:function` of something installed; docs/extending.md."""
    params: dict[str, Scalar] = {}
    """Handed to the task's constructor, e.g. model = "cnn"."""
    batch_size: AtLeastOne = 32
    """Samples per local step."""


class PartitionSection(Section, frozen=True):
    """How built-in data are split among nodes; a node with `--data` of its own uses all of it."""

    kind: Literal["iid", "dirichlet", "by_label", "by_file", "by_key"] = "dirichlet"
    """iid: at random. dirichlet: labels in unequal shares. by_label: few labels each. by_file, by_key: a file, or one author's samples,
    stays together (tasks that know such)."""
    alpha: Positive = 0.3
    """dirichlet: concentration; smaller is more different."""
    shards: AtLeastOne = 8
    """How many parts are cut. A node takes part `shard` of its own config, or one derived from its peer id."""


class OptimizerSection(Section, frozen=True):
    """The local optimiser."""

    kind: Name = "sgd"
    """Of torch.optim: sgd, adamw, adam, nadam, radam, adamax, adagrad, adadelta, rmsprop, rprop, asgd, adafactor. All but sgd need
    correction_lr with algorithms that correct."""
    lr: Positive = 0.02
    """Length of a local step, before `schedule`."""
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """sgd only."""
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    """sgd: times the parameters, added to the gradient. adamw: times lr, the share of them that a step takes away."""
    schedule: Literal["constant", "cosine", "linear"] = "cosine"
    """Over `pace.rounds`; constant where rounds = 0 (endless)."""
    warmup: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Share of the rounds in which lr climbs linearly from 0."""
    floor: Annotated[float, Meta(gt=0, le=1)] = 0.05
    """The schedule ends at floor · lr."""
    correction_lr: Annotated[float, Meta(ge=0)] = 0.0
    """eta_c of the tracking gain. 0: lr/(1 − momentum) for sgd; all others need a value (a typical lr/(√v̂+ε))."""
    params: dict[str, Scalar] = {}
    """Passed to the class of torch.optim: eps, beta_1, beta_2, nesterov …"""


class MixSection(Section, frozen=True):
    """How models are mixed."""

    kind: Name = "pet"
    """The algorithm; docs/algorithms.md compares them. gather: by a rule of `robust`, among members one need not trust."""
    kappa: Annotated[float, Meta(ge=0, le=0.5)] = 0.1
    """pet: damping of the correction. At most 0.1 for whole vectors, 0.3 for masks of a tenth; more drifts apart under faults."""
    theta: Annotated[float, Meta(gt=0, le=0.5)] = 0.5
    """clock pace: mixing weight of a pairwise exchange. In steps pace the overlay gives the weights."""
    clip_norm: Annotated[float, Meta(ge=0)] = 10.0
    """Both ends clip the exchanged difference to this Euclidean norm; 0 is off. Not where models are pulled or messages swapped."""
    flow_limit: Annotated[float, Meta(gt=0)] = 100.0
    """pet: bound of every |c_ij| coordinate, in gradient units."""
    settled_edges: Annotated[int, Meta(ge=0, le=64)] = 8
    """pet: flows of orderly closed edges kept revocable."""
    leak: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """pet: share of a flow that is forgotten at each exchange: what a liar put into it does not stay."""
    tracker_clip: Annotated[float, Meta(ge=0)] = 0.25
    """defended_tracking: most that an exchange moves a tracker, in norms of the gradients of either end; 0 is off."""
    tracker_leak: Annotated[float, Meta(ge=0, lt=1)] = 0.2
    """defended_tracking: share of the correction that a round forgets. 0.4 for anonymous swarms."""
    tracker_cap: Annotated[float, Meta(ge=0)] = 1.0
    """defended_tracking: longest correction, in norms of our own gradients; 0 is off. 0.5 for anonymous swarms."""
    step_clip: Annotated[float, Meta(ge=0)] = 3.0
    """defended_tracking: most that an exchange moves a model, in lengths of our own steps, as robust.rule = sac; 0 is off."""
    order: Literal["atc", "awc"] = "atc"
    """dsgd: adapt then combine, or adapt while combining (local steps start from the model before mixing)."""
    eta_s: Annotated[float, Meta(gt=0)] = 1.0
    """k_gt: outer rate of the averaged local steps."""
    beta: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """quasi_global: momentum of the mixed displacement; goes with optimizer.momentum = 0."""
    chi1: Positive = 1.0
    """a2cid2: χ1 of the overlay, in local steps; `starling overlay show` prints both."""
    chi2: Positive = 1.0
    """a2cid2: χ2 of the overlay, at most χ1."""
    gamma: Annotated[float, Meta(gt=0, le=1)] = 0.02
    """choco, beer: consensus step, about twice the share of coordinates sent; a little more diverges."""
    feedback: Literal["none", "ef", "ef21", "ef21_sgdm", "econtrol", "dgc"] = "ef"
    """psgd: what becomes of what compression drops."""
    feedback_beta: Annotated[float, Meta(gt=0, le=1)] = 0.1
    """psgd, feedback = ef21_sgdm: weight of the newest update in the running mean."""
    feedback_control: Annotated[float, Meta(gt=0, le=1)] = 0.02
    """psgd, feedback = econtrol: share of what is owed that enters each message; about the share of the norm that compression keeps."""
    feedback_momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """psgd, feedback = dgc: momentum before compression; goes with optimizer.momentum = 0."""
    outer_lr: Positive = 0.7
    """outer: rate of the outer step."""
    outer_momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """outer: momentum of the outer step. Without overlay.average_every too much of it drives nodes apart, which is refused."""
    nesterov: bool = True
    """outer: look ahead."""
    pull: Annotated[float, Meta(ge=0)] = 0.0
    """outer: consensus step of the anchors, for averages with neighbors only; doubles the bytes."""
    fragments: Annotated[int, Meta(ge=1, le=1024)] = 1
    """outer: parts of the model that are averaged in turn."""
    keep: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """outer: share of the own model that an outer step leaves, where local steps go on meanwhile."""
    penalty: Annotated[float, Meta(ge=0)] = 0.0
    """outer: weight of staleness against the outer step."""
    outer_clip: Annotated[float, Meta(ge=0)] = 0.0
    """outer: bound of every coordinate of the outer momentum; 0 is off."""
    params: dict[str, Scalar] = {}
    """Passed to the algorithm of a package."""


class OverlaySection(Section, frozen=True):
    """Who meets whom."""

    kind: Name = "sticky"
    """The graph; docs/algorithms.md compares them. pull: every node asks k members that it drew itself, for mix.kind = gather."""
    k: Annotated[int, Meta(ge=1, le=32)] = 1
    """base_k, simple_base_k, hyper_hypercube, pull, and sweeps of average_every: most peers a node meets in one round."""
    rerank_every: Count = 0
    """Rounds after which members are ranked anew, so that nobody chooses its neighbors; 0: never."""
    degree: Annotated[int, Meta(ge=1, le=32)] = 6
    """sticky, clock pace: edges a node keeps."""
    weights: Literal["", "lazy", "metropolis_hastings", "uniform", "max_degree"] = ""
    """Rule for mixing weights; "" is the kind's own. lazy: half of it, for every kind; the others where degrees differ."""
    average_every: Count = 0
    """steps pace: after every so many rounds with local steps an exact average of all, by a sweep of base-(k+1). 0: none."""
    overlap: bool = False
    """average_every: local steps go on during a sweep."""
    factor: Annotated[float, Meta(ge=0)] = 0.0
    """erdos_renyi: a of the edge probability (1 + a) ln n / n; 0 is its own default."""
    basis: Count = 0
    """d_equi_static, u_equi_static: shifts drawn; 0 is its own default."""
    eta: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """od_equi_dyn, ou_equi_dyn: share of the basis graph; 0 is its own default."""
    params: dict[str, Scalar] = {}
    """Passed to the overlay of a package."""


class RobustSection(Section, frozen=True):
    """How a node combines what it pulls from peers it need not trust (mix.kind = "gather")."""

    rule: Name = "cs_nnm"
    """mean, median, trimmed_mean, meamed, krum, multi_krum, bulyan, geometric_median, mda, centered_clip, sac, cs_plus, cs_nnm,
    clipped_gossip, norm_bound, nna, ubar, balance, bridge, flag, foolsgold; docs/robustness.md compares them."""
    b: Annotated[int, Meta(ge=0, le=64)] = 2
    """Bad ones among those pulled that the rule is set for."""
    before: Annotated[str, Meta(max_length=128)] = ""
    """What is done to the vectors before the rule: mixed with their nearest, or averaged in buckets."""
    bucket: Annotated[int, Meta(ge=1, le=16)] = 2
    """bucketing: vectors of a bucket."""
    kappa: Annotated[float, Meta(gt=0)] = 3.0
    """sac: threshold in norms of our own local steps. 3 to 4 works; 2 costs accuracy, 6 is no defence."""
    tau: Annotated[float, Meta(ge=0)] = 1.0
    """centered_clip, norm_bound: the threshold itself."""
    share: Annotated[float, Meta(gt=0, le=1)] = 0.4
    """ubar: share of the nearest that are looked at. balance: weight of our own model."""
    gamma: Annotated[float, Meta(gt=0)] = 0.3
    """balance: how far away a model may be, in norms of our own."""
    params: dict[str, Scalar] = {}
    """Passed to the rule of a package."""


class AdmissionSection(Section, frozen=True):
    """Who may be a member."""

    kind: Literal["open", "invite", "allow"] = "open"
    """open: anyone with a proof of work. invite: whom the founder, or somebody invited, has invited. allow: the listed."""
    members: Annotated[tuple[Annotated[str, Meta(max_length=128)], ...], Meta(max_length=256)] = ()
    """allow: peer ids; the founder is one anyway."""
    depth: Annotated[int, Meta(ge=1, le=8)] = 2
    """invite: longest chain from the founder to a member."""
    quota: Annotated[int, Meta(ge=0, le=64)] = 3
    """invite: members whom somebody invited may invite; the founder as many as it likes."""
    bits: Annotated[int, Meta(ge=0, le=24)] = 0
    """open: difficulty, 2**bits tries on average; 0 asks for no work."""
    memory_kib: Annotated[int, Meta(ge=8, le=65536)] = 8192
    """open: memory of one try of argon2id."""
    epoch_s: Annotated[float, Meta(ge=60)] = 21600.0
    """open: a proof of work is good for so long."""
    per_prefix: Annotated[int, Meta(ge=0, le=64)] = 0
    """overlay.kind = pull: most of those asked in a round that are from one IPv4 /24, IPv6 /48 or operator; 0: any. Loopback and private
    addresses do not count."""


class CompressSection(Section, frozen=True):
    """What crosses the wire."""

    select: Name = "budget"
    """budget: full vectors where they fit the byte budget of an exchange, else a seeded mask as large as fits.

    Or full, mask, random_k, top_k, top_k_sampled, chunk_top_k, layered, cocktail, drift_top_k, dct_top_k, low_rank, or a package's;
    docs/algorithms.md compares them.
    """
    ratio: Annotated[float, Meta(gt=0, le=1)] = 0.1
    """Share of the coordinates in one exchange."""
    keep: Annotated[float, Meta(gt=0, le=1)] = 0.2
    """cocktail: share of a mask's coordinates that is kept."""
    chunk: Annotated[int, Meta(ge=0, le=4096)] = 0
    """chunk_top_k, dct_top_k: coordinates of a chunk; 0 is the selector's own default."""
    rank: Annotated[int, Meta(ge=1, le=1024)] = 4
    """low_rank: directions per matrix."""
    request: Name = "fp16"
    """Codec of the initiator's values: identity, fp16, bf16, or any of those of `response`."""
    response: Name = "int4"
    """Codec of the difference that both ends apply, or of messages that are swapped.

    identity, fp16, bf16, int8 … int2 (by chance), int8_nearest … int2_nearest, qsgd127 … qsgd1, sign, fp8_e4m3, fp8_e5m2, fp4_e2m1,
    fp4_e3m0, or a package's.
    """
    params: dict[str, Scalar] = {}
    """Passed to the selector of a package."""
    budget_bytes: Annotated[int, Meta(ge=0)] = 0
    """budget, layered: bytes one exchange may cost (both directions). 0: from the measured rate, the slot and the volunteer's cap."""


class PaceSection(Section, frozen=True):
    """When nodes compute and when they meet."""

    kind: Literal["steps", "clock"] = "steps"
    """steps: rounds of so many local steps, and peers wait for each other. clock: an exchange per slot of time, whoever is how far."""
    local_steps: Annotated[int, Meta(ge=1, le=100_000)] = 20
    """steps: local steps of a round. clock: a guess of how many fit between two exchanges, until measured."""
    rounds: Count = 200
    """The run's length in rounds (slots in clock pace); 0 is endless."""
    quorum: AtLeastOne = 2
    """Members that must be there before training begins; later a lone node goes on."""
    slot_s: Positive = 1.0
    """clock: seconds between a node's exchanges. steps: the time in which one exchange should be over, for the byte budget."""
    max_wait_s: Positive = 10.0
    """steps: the adaptive deadline, counted from when peers as slow as half our speed are ready, never exceeds this."""
    min_wait_s: Positive = 0.25
    """steps: nor falls below this."""
    ramp_rounds: Count = 20
    """A late joiner's lr climbs to its full value over this many rounds."""
    evaluate_every: AtLeastOne = 20
    """Rounds between evaluations on held-out data."""


class MembershipSection(Section, frozen=True):
    """The failure detector's clockwork."""

    probe_s: Positive = 1.0
    """Seconds between probes of a random member."""
    timeout_s: Positive = 0.5
    """Seconds to wait for an acknowledgement before asking others to probe."""
    suspicion_s: Positive = 2.0
    """Seconds a suspected member has to refute."""
    sync_s: Positive = 5.0
    """Seconds between anti-entropy exchanges with a random member."""
    helpers: Annotated[int, Meta(ge=0, le=8)] = 2
    """Members asked for an indirect probe."""


class Manifest(Section, frozen=True):
    """What the swarm is. Its hash is the swarm id."""

    name: Annotated[str, Meta(min_length=1, max_length=64)] = "starling"
    """For people."""
    protocol: Literal[1] = 1
    """Version of what nodes say to each other."""
    seed: Annotated[int, Meta(ge=0, le=2**62)] = 0
    """Root of all shared chance: initial model, overlay, masks, partition."""
    founder: Annotated[str, Meta(max_length=128)] = ""
    """Peer id of the founder; filled by `starling found`."""
    founded_ms: Count = 0
    """Unix time of the founding; filled by `starling found`."""
    signature: Annotated[str, Meta(max_length=128)] = ""
    """Founder's Ed25519 signature (hex) over all other fields; filled by `starling found`."""
    task: TaskSection = TaskSection()
    partition: PartitionSection = PartitionSection()
    optimizer: OptimizerSection = OptimizerSection()
    mix: MixSection = MixSection()
    overlay: OverlaySection = OverlaySection()
    compress: CompressSection = CompressSection()
    pace: PaceSection = PaceSection()
    membership: MembershipSection = MembershipSection()
    robust: RobustSection = RobustSection()
    admission: AdmissionSection = AdmissionSection()
    preset: Preset = "custom"
    """vouched, open: values of many keys at once, for members one knows and for strangers; docs/robustness.md lists them."""
    bad_share: BadShare = 0.0
    """The share of bad members that this swarm is meant to stand; more than its rule does is refused."""


class LimitsSection(Section, frozen=True):
    """What peers may cost this machine."""

    connections: AtLeastOne = 128
    """At a time; when they are full the one of least use gives way, or the newcomer is turned away."""
    connections_per_ip: AtLeastOne = 64
    """Of these from one IP address, private and loopback ones too: raise it for many nodes on one machine."""
    inbox_frames: AtLeastOne = 64
    """Frames of one lane waiting to be handled; more are dropped and counted."""
    frames_per_s: Positive = 200.0
    """Sustained frames a second accepted from one peer (bursts of 4x); more are dropped and counted."""


class PrivacySection(Section, frozen=True):
    """What this volunteer's data may reveal. docs/privacy.md says what it does, and what not."""

    noise: Annotated[float, Meta(ge=0)] = 0.0
    """Standard deviation of the noise on every local step's gradient, in units of `clip_norm`; 0 is off."""
    clip_norm: Positive = 1.0
    """Every sample's gradient is clipped to this norm."""
    delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-5
    """Of (epsilon, delta) differential privacy."""
    max_epsilon: Annotated[float, Meta(ge=0)] = 0.0
    """Training stops before more than this is spent; 0: no limit."""
    exchange_noise: Annotated[float, Meta(ge=0)] = 0.0
    """Standard deviation of the noise on each number that is told to a peer; 0 is off."""


class MetricsSection(Section, frozen=True):
    """Figures of this node for Prometheus, by HTTP. docs/observing.md lists them."""

    listen: Annotated[str, Meta(max_length=256)] = ""
    """Where they are served: 127.0.0.1:9464 is for this machine alone, :9464 for all who can reach it, [::1]:9464; "" is off."""


class RecordSection(Section, frozen=True):
    """A record of the run in the run directory, which the terminal UI replays and pandas reads. docs/observing.md says how."""

    every_s: Annotated[float, Meta(ge=0)] = 0.0
    """Seconds between two lines of record.jsonl, 0.1 at the least; 0 is off."""
    max_bytes: Annotated[int, Meta(ge=4 << 20)] = 64 << 20
    """Of record.jsonl and record.jsonl.1 together: when they are full the older half is dropped."""


class NodeConfig(Section, frozen=True):
    """One volunteer's own settings. Stored in the run directory as node.toml."""

    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Multiaddrs to listen on; port 0 picks one, which is then kept."""
    announce: tuple[str, ...] = ()
    """Multiaddrs to tell others instead of the listening ones (behind port forwarding)."""
    bootstrap: tuple[str, ...] = ()
    """Multiaddrs with /p2p/ID of members to join through; filled from the invite."""
    data: str = ""
    """The volunteer's own data (file or folder); empty: the task's built-in data, one shard of it."""
    trust: bool = False
    """Agree that the manifest names code (module:function) or files (task.params.path) of this machine."""
    shard: Annotated[int, Meta(ge=-1)] = -1
    """Which part of built-in data; -1 derives it from the peer id."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where the engine computes; auto takes a GPU if there is one."""
    threads: Count = 0
    """Torch threads; 0 leaves torch's choice."""
    up_bytes_per_s: Count = 0
    """Cap on what is sent; 0 is none. The CLI takes 10mbit and the like."""
    down_bytes_per_s: Count = 0
    """Cap on what is received; 0 is none."""
    checkpoint_s: Positive = 30.0
    """Seconds between checkpoints."""
    engine_timeout_s: Positive = 300.0
    """An engine that answers nothing for so long is restarted from its last checkpoint."""
    linger_s: Annotated[float, Meta(ge=0)] = 30.0
    """After the last round: seconds to keep answering those who are still at it."""
    limits: LimitsSection = LimitsSection()
    operator: Annotated[str, Meta(max_length=64)] = ""
    """Who runs this node, the same word on all of one's nodes: peers do not take too many of one operator for neighbors."""
    privacy: PrivacySection = PrivacySection()
    attack: Annotated[str, Meta(max_length=64)] = ""
    """Experiments only: lie to the swarm in this way, see docs/attacks.md. Needs `attack_agreed`, and who looks at the node is told."""
    attack_params: dict[str, Scalar] = {}
    """Handed to the attack."""
    attack_agreed: bool = False
    """You know what `attack` does, and the swarm is yours."""
    metrics: MetricsSection = MetricsSection()
    record: RecordSection = RecordSection()
