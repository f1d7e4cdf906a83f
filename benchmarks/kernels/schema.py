"""Results of measurements, and the cases measured by default. Torch-free: the command line reads it."""

from itertools import product

import msgspec

CODECS = (
    "full+fp16",
    "full+int8",
    "full+int4",
    "mask:0.1+int4",
    "top_k:0.01+int4",
    "top_k:0.01+fp16",
    "chunk_top_k:0.05+int4",
    "chunk_top_k:0.05+spread2",
    "torch.topk:0.01+numpy",
)
"""SELECTOR[:RATIO]+QUANTIZER. The last is the baseline: torch.topk, indices as int32 and values as float32, as numpy packs them."""
BASELINE = "torch.topk"
RULES = ("median", "trimmed_mean", "geometric_median", "multi_krum", "nnm")
"""Combining rules that are measured."""
ALL_RULES = ("mean", *RULES[:2], "meamed", "geometric_median", "krum", "multi_krum", "mda", "nna", "nnm")
"""Those that both libraries have."""
PEER = "byzfl"
PEER_EXTRA = "benchmark"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one codec at one length. Speeds are bytes of the dense float32 vector per second, in 10^9; the best of the repetitions."""

    codec: str
    d: int
    encode_gb_s: float
    """From the vector to the payload, with the selection."""
    decode_gb_s: float
    """From the payload to support and values."""
    round_trip_gb_s: float
    """Both, one after the other."""
    bytes_per_parameter: float
    """Of the payload."""
    index_bits_over_entropy: float | None
    """Bits of a coordinate's index over log2 C(d, k)/k; None where no indices are sent."""
    peak_extra_bytes: int | None
    """The most memory that encoding took beyond the vector, or decoding beyond the payload, with their results.

    None where the system does not tell."""
    memcpy_gb_s: float
    """A copy of the vector into memory that is there already, on the same threads in the same process."""
    beside: int = 0
    """Busy processes of the two figures below."""
    beside_gb_s: float | None = None
    """`round_trip_gb_s` beside them, but of the median repetition; None without any."""
    beside_over_quiet: float | None = None
    """That over the speed of the median repetition without them, just before."""


class RuleCase(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one combining rule at one length. Times are processor seconds of one thread, the best of the repetitions."""

    rule: str
    n: int
    """Vectors, our own included; a fifth of them bad."""
    d: int
    ours_cpu_s: float
    peer_cpu_s: float
    """byzfl's."""
    ratio: float
    """The peer's time over ours."""
    max_error: float
    """Largest absolute difference of a coordinate between the two results; coordinates are about 1. The peer's geometric median is
    computed again in float64 for this."""


TRANSPORTS = ("starling", "tcp", "tls")
"""Ways to send messages that are measured: a node's connection, and plain and encrypted TCP as trio does them."""


class LinkCase(msgspec.Struct, frozen=True, kw_only=True):
    """Result of messages of one size over one transport between two processes; the fastest repetition."""

    message_bytes: int
    rtt_ms: int
    """Measured on a TCP connection of its own; 0 where it is below half a millisecond."""
    rate_mbit: float
    """Of the link, as the owner says; 0: unknown, or without limit."""
    transport: str
    mb_s: float
    """10^6 bytes of messages a second, from the first byte sent until the receiver has said that it has the last one."""
    tx_cpu_s_per_gib: float
    """Processor seconds of the sending process, all threads, by 2^30 bytes of messages."""
    rx_cpu_s_per_gib: float
    """Of the receiving one."""


MODELS = ("cnn", "gpt")
"""What nodes train where exchanges are measured beside it: a CNN on grey images of 28 x 28, and a GPT on bytes."""
PACES = ("steps", "clock")
DRIVERS = ("task", "script")
"""What does local steps: a built-in task in the engine, or a plain loop that is a member by `starling.Swarm`."""


class OverlapCase(msgspec.Struct, frozen=True, kw_only=True):
    """Result for two nodes on separate cores: training speed with exchanges, compared with plain loops and with lone nodes.

    The repetition with the median ratio.
    """

    model: str
    d: int
    link: float
    """Mbit/s that each node sends and receives at the most."""
    pace: str
    """steps is with pace.overlap."""
    driver: str
    """Of what does the local steps: a built-in task in the engine, or a plain loop beside it that is a member by `starling.Swarm`."""
    plain_steps_s: float
    """Steps a second of a plain PyTorch loop of the same model, data, batch size and optimiser, mean of two that train at once."""
    alone_steps_s: float
    """Local steps a second of a node without peers, mean of two that train at once, each alone in its swarm."""
    swarm_steps_s: float
    """Of a node that exchanges with the other, waiting included, mean of the two."""
    kept: float
    """Speed in the swarm over that of the plain loop."""
    kept_undisturbed: float | None
    """The same without the time in which other processes had the core of an engine, or of a plain loop, that was ready to run.

    None where the system does not tell. On an idle machine it is `kept`; on a busy one it says more."""
    ratio: float
    """Speed in the swarm over that alone."""
    undisturbed: float | None
    """The same without the time of others."""
    peak_bytes_per_parameter: float
    """Most resident of an engine in the swarm, beyond what an engine with next to no parameters takes."""
    cores: int
    """Of each node, none of them the other's; 0: the system does not pin processes."""
    exchanges: int
    """Committed in the time measured, by both nodes."""
    payload_bytes: float
    """Of an exchange, both directions."""
    load: tuple[float, float]
    """Load average of a minute before and after. With more processes than cores a ratio says as much about the others."""


LOOP_MODELS = ("mlp", "cnn", "gpt_800k", "gpt_10m")
"""What is trained beside a plain loop: the digits MLP, a CNN on grey images of 28 x 28, and byte GPTs of .8 and 10 million parameters."""
LOOP_OPTIMIZERS = ("sgd", "adamw", "muon")
LOOP_MIXES = ("dsgd", "default")
"""Plain averages, and as `starling create` chooses."""
LOOP_CASES = tuple(
    case for case in product(LOOP_MODELS, LOOP_OPTIMIZERS, LOOP_MIXES, DRIVERS) if case[:2] != ("cnn", "muon") or case[3] == "task"
)
"""All but scripts with torch's Muon and a convolution: its filters are no matrices, and a task shows them to it as such."""


class LoopCase(msgspec.Struct, frozen=True, kw_only=True):
    """Result for local steps of one model, compared with a plain PyTorch loop; the pair of slices with the median ratio."""

    model: str
    d: int
    optimizer: str
    mix: str
    driver: str
    """Who does local steps: task, a built-in task in the engine; script, a plain loop that is a member by `starling.Swarm`."""
    plain_ms: float
    """Processor time of a plain loop's step, on one thread."""
    ours_ms: float
    """Of a local step."""
    kept: float
    """The first over the second: the share of a plain loop's speed that a local step keeps."""


NEVER_WORSE_AXES = (
    ("by_label", "dirichlet", "iid", "by_language", "by_author"),
    ("sgd", "adamw", "muon"),
    ("cosine", "constant"),
    ("normal", "twentyfold"),
    ("calm", "faults"),
)
"""Splits of the data, optimisers, schedules, rates and faults: in each combination the default mix is compared with plain averages."""


class NeverWorseCase(msgspec.Struct, frozen=True, kw_only=True):
    """The default mix minus plain averages (`mix=dsgd`) in one cell, of runs with equal seeds, partners and batches.

    Differences are of the metric's mean over nodes, mean over seeds, and positive where the default is better. Errors are standard errors
    over seeds, null for one seed. Evaluations end where one of the runs diverged.
    """

    cell: str
    """SPLIT/OPTIMIZER/SCHEDULE/RATE/FAULTS."""
    data: str
    """What was learned from, and for texts the beginning of a SHA-256 of them."""
    metric: str
    higher_is_better: bool
    """Of the metric."""
    seeds: tuple[int, ...]
    rounds: tuple[int, ...]
    """Done at each evaluation."""
    difference: tuple[float, ...]
    """At each evaluation."""
    error: tuple[float | None, ...]
    """Of each difference."""
    worst: float | None
    """The least difference; null without an evaluation."""
    worst_error: float | None
    worst_round: int | None
    end: float | None
    """The last difference."""
    end_error: float | None
    default_end: float | None
    """The metric of the default at the end, mean over seeds."""
    plain_end: float | None
    below: int
    """Evaluations at which the default is worse by more than three standard errors."""
    above: int
    """Evaluations at which it is better by more than that."""
    diverged: tuple[int, int]
    """Seeds that diverged, of the default and of plain averages."""
    committed: tuple[float, float]
    """Share of the exchanges with living nodes that took place, of the default and of plain averages."""
    worse: bool
    """It is below at some evaluation, or diverged in more seeds."""


class MemoryCase(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of an engine process with one layout, in bytes per parameter beyond the same engine with a model of next to none."""

    layout: str
    d: int
    degree: int
    """Peers with which whole vectors are exchanged each round."""
    held: float
    """Resident between rounds."""
    peak: float
    """Most resident in any phase."""
    phases: dict[str, float]
    """Most resident in each: open, train, exchange, mix, evaluate, save, serve a model to late joiners, again (a round after that), resume
    and train from the checkpoint, join by three models and train."""
    torch_bytes: int
    """Resident of the engine with next to no parameters: the interpreter, torch and the task."""
