"""The status of a node: one immutable snapshot, JSON on a unix socket. A leaf: imports nothing of Starling but
`starling.node.versions`.

Missing is None, never 0. Times are seconds; rates are per second; sizes are bytes. New fields are appended with a default. `gauge` and
`counter` declare the Prometheus metric of a field, which `starling.node.status.metrics` finds.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from starling.node.versions import SNAPSHOT, unreadable

VERSION = SNAPSHOT.newest


def gauge(name: str, text: str, *, zero_is_absent: bool = False) -> Meta:
    """Return a metric that may fall: its name without `starling_`, with its unit, and one line for Prometheus and the JSON Schema."""
    return Meta(description=text, extra={"kind": "gauge", "name": f"starling_{name}", "zero_is_absent": zero_is_absent})


def counter(name: str, text: str) -> Meta:
    """Return a metric that only rises; Prometheus adds `_total` to its name."""
    return Meta(description=text, extra={"kind": "counter", "name": f"starling_{name}", "zero_is_absent": False})


class Exchanges(msgspec.Struct, frozen=True):
    """Numbers of this node's exchanges by outcome, both ends counted."""

    committed: int = 0
    aborted: int = 0
    busy: int = 0
    timeout: int = 0


class PeerStatus(msgspec.Struct, frozen=True):
    """One member as this node sees it."""

    peer: str
    state: Literal["alive", "suspect", "dead", "left", "quarantined", "banned"]
    edge: bool = False
    """This node has an edge with it."""
    round: int | None = None
    """Last round seen from it."""
    rtt_s: Annotated[float | None, gauge("peer_rtt_seconds", "Time of a probe to this peer and back.")] = None
    bytes_sent: Annotated[int, counter("peer_bytes_sent", "Bytes of frames sent to this peer.")] = 0
    bytes_received: Annotated[int, counter("peer_bytes_received", "Bytes of frames received from this peer.")] = 0
    committed: Annotated[int, counter("peer_exchanges_committed", "Exchanges committed with this peer.")] = 0
    faults: int = 0
    last_seen_s: float | None = None
    """Seconds since the last message from it, at the time of the snapshot."""
    addresses: tuple[str, ...] = ()
    standing: Literal["probation", "active", "quarantine", "ban"] = "probation"
    """Derived from its behaviour."""
    score: Annotated[float, gauge("peer_score", "Decayed faults of this peer; higher is worse.")] = 0.0
    contribution: float = 0.0
    """Decayed count of committed exchanges, up to 20; higher is better."""
    staleness: Annotated[
        float | None, gauge("peer_staleness_ratio", "Share of recent exchanges that this peer did not answer, 0 to 1.")
    ] = None
    clipped: Annotated[
        float | None, gauge("peer_clipped_ratio", "Share of recent exchanges whose vector from this peer was clipped, 0 to 1.")
    ] = None
    trusted: bool = False
    """By this node's owner."""
    shut_out_s: float | None = None
    """Seconds that a quarantine or ban still lasts; None without an end, or without either."""
    why: str = ""
    """Of a ban."""
    inviter: str = ""
    """The member that invited it and is liable for it; "" for the creator, and in open swarms."""
    way: Literal["", "direct", "relayed", "control"] = ""
    """Of the connection to it: to the peer itself, through a relay, or through one that carries control messages alone; "" for none."""
    relay: str = ""
    """The member through which that connection goes; "" for none."""


class Event(msgspec.Struct, frozen=True):
    """A line for a person, as in the log."""

    time_s: float
    """Unix time."""
    name: str
    """snake_case, e.g. peer_joined."""
    text: str
    level: Literal["info", "warning", "error"] = "info"


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One point of a curve."""

    round: int
    time_s: float
    """Seconds since the start."""
    value: float


class Resources(msgspec.Struct, frozen=True):
    """Use of the machine by both processes of this node together."""

    cpu: Annotated[float | None, gauge("cpu_cores", "Cores kept busy by both processes.")] = None
    """Cores in use, mean since the last snapshot: 0.5 is half of one."""
    memory_bytes: Annotated[int | None, gauge("resident_memory_bytes", "Of both processes.")] = None
    disk_bytes: Annotated[int | None, gauge("disk_bytes", "Of the run directory.")] = None
    gpu: Annotated[float | None, gauge("gpu_busy_ratio", "GPU utilisation by all processes, 0 to 1.")] = None
    gpu_memory_bytes: Annotated[int | None, gauge("gpu_memory_bytes", "Of the GPU, taken by this node.")] = None
    threads: Annotated[int | None, gauge("threads", "Of torch, in local steps on the CPU.")] = None
    tasks: Annotated[int | None, gauge("tasks", "Of the daemon; a number that grows while the members stay as many is a leak.")] = None


class Transaction(msgspec.Struct, frozen=True):
    """One finished exchange with one peer."""

    time_s: float
    """Unix time of its end."""
    peer: str
    round: int
    number: int
    """Of its edge, or of the request where models are pulled; 0 for one that was due and did not begin."""
    asked: bool
    """This node began it."""
    outcome: Literal["committed", "aborted", "busy", "timeout"]
    bytes_sent: int = 0
    """Of payloads."""
    bytes_received: int = 0
    clip: float | None = None
    """Share of the difference that clipping left, 0 to 1: 1 is not clipped; None where it is not known."""
    seconds: float | None = None
    """From the first frame about it to the end."""
    waited_s: float | None = None
    """Of these, how long a peer's request waited for this node's local steps; None where there was none to answer, or models are pulled."""


class Transfer(msgspec.Struct, frozen=True):
    """Bytes that are on their way from or to one peer."""

    peer: str
    kind: Literal["model", "exchange"]
    """The model of a swarm that this node joins, or the payloads of an exchange."""
    done_bytes: int
    """Payload bytes that have come; of an exchange also those sent."""
    total_bytes: int | None = None
    """None where it is not known in advance."""
    seconds: float = 0.0
    """Since it began."""


class StatusSnapshot(msgspec.Struct, frozen=True):
    """The state of one node at one moment."""

    version: int
    peer: str
    swarm: str
    name: str
    """The swarm's name."""
    time_s: float
    """Unix time at which this was taken."""
    uptime_s: Annotated[float, gauge("uptime_seconds", "Since the start.")]
    state: Literal["starting", "joining", "training", "waiting", "finished", "leaving", "failed"]
    problem: str | None = None
    """What is wrong, with the next command to try; None when nothing is."""
    task: str = ""
    metric: str = ""
    """Name of the evaluation figure: accuracy, bits_per_byte, error."""
    higher_is_better: bool = True
    algorithm: str = ""
    overlay: str = ""
    parameters: Annotated[int | None, gauge("parameters", "Scalars in the model.")] = None
    """d, scalars in the model."""
    device: str | None = None
    round: Annotated[int, gauge("round", "Rounds done.")] = 0
    rounds: Annotated[int, gauge("rounds", "Length of the run in rounds; absent where it is endless.", zero_is_absent=True)] = 0
    """0: endless."""
    local_steps: Annotated[int, counter("local_steps", "Optimizer steps done; goes on from the checkpoint after a restart.")] = 0
    steps_per_s: Annotated[float | None, gauge("steps_per_second", "Local steps per second of computing time.")] = None
    """Local steps per second of computing time, over the last 16 rounds."""
    loss: Annotated[float | None, gauge("loss", "Mean training loss of the last round.")] = None
    value: float | None = None
    """Last evaluation on held-out data."""
    value_round: Annotated[int | None, gauge("value_round", "Round of the last evaluation on held-out data.")] = None
    members: Annotated[int, gauge("members", "Members believed alive, this node included.")] = 1
    bytes_sent: Annotated[int, counter("bytes_sent", "Bytes of frames sent to peers.")] = 0
    bytes_received: Annotated[int, counter("bytes_received", "Bytes of frames received from peers.")] = 0
    payload_bytes: Annotated[int, counter("payload_bytes_sent", "Payload bytes sent in committed exchanges.")] = 0
    up_bytes_per_s: float | None = None
    down_bytes_per_s: float | None = None
    exchanges: Exchanges = Exchanges()
    engine_restarts: Annotated[int, counter("engine_restarts", "Engine processes that died or hung and were replaced.")] = 0
    seat: str = ""
    """In a swarm of crews: which stage of which crew this node holds, and what the crew lacks."""
    rejoined: bool = False
    """This start resumed an earlier one's state."""
    joined_late: bool = False
    """State was fetched from peers."""
    addresses: tuple[str, ...] = ()
    peers: tuple[PeerStatus, ...] = ()
    loss_curve: tuple[Point, ...] = ()
    """At most 240 points, thinned."""
    value_curve: tuple[Point, ...] = ()
    events: tuple[Event, ...] = ()
    """The last 50."""
    epsilon: Annotated[
        float | None, gauge("privacy_epsilon", "Privacy loss of this node's data (differential privacy); absent without noise.")
    ] = None
    delta: Annotated[float | None, gauge("privacy_delta", "Of that epsilon.")] = None
    byzantine: Annotated[bool, gauge("byzantine", "1 when this node attacks its swarm because its owner asked it to.")] = False
    """It attacks its swarm because its owner asked it to; `problem` says how."""
    up_limit_bytes_per_s: Annotated[int | None, gauge("up_limit_bytes_per_second", "The owner's cap on what is sent; absent without.")] = (
        None
    )
    down_limit_bytes_per_s: Annotated[
        int | None, gauge("down_limit_bytes_per_second", "The owner's cap on what is received; absent without.")
    ] = None
    resources: Resources = Resources()
    paced_per_s: Annotated[float | None, gauge("paced_steps_per_second", "Local steps per second, waiting for peers included.")] = None
    """Local steps per second of all time, waiting for peers included, over the same rounds as `steps_per_s`: never above it."""
    distance: Annotated[
        float | None, gauge("consensus_distance", "Root mean square per parameter of the difference to a peer, median of them.")
    ] = None
    """Consensus distance as this node measures it: root mean square per parameter of its difference to a peer, the median over its peers in
    the last exchanges. Only exchanged coordinates count, so selectors that favour large changes overestimate it."""
    distance_curve: tuple[Point, ...] = ()
    ranks: tuple[str, ...] = ()
    """Members in order of rank, this node included, 64 at most; what `links` counts by."""
    links: tuple[tuple[int, int], ...] = ()
    """Pairs that exchange in this round, as far as this node knows: indices into `ranks`, the smaller first. Where edges are sticky, or
    models are pulled, or there are more than 64 members, those of this node alone."""
    transactions: tuple[Transaction, ...] = ()
    """The last 50 exchanges that ended, oldest first."""
    transfers: tuple[Transfer, ...] = ()
    """Under way, the longest first; 16 at most."""
    activity: str = ""
    """What the node is doing while it does not train yet, e.g. "starting the engine (importing torch)"; "" otherwise."""
    reachability: Literal["unknown", "reachable", "hidden"] = "unknown"
    """Whether members can dial this node, as they found when it asked them to; hidden: behind a NAT or a firewall."""
    bootstrap: tuple[str, ...] = ()
    """What an invite made now leads to: addresses of this node, and of other members where it met them; 8 at most."""
    best: float | None = None
    """Value of the best model so far, by this node's evaluations; None before the first."""
    best_round: int | None = None
    """Rounds that it had done."""
    method: str = ""
    """How the swarm trains, as "pairwise edge tracking over sticky edges, int4, 20 local steps a round"; "" before it is known."""
    agreed: tuple[tuple[str, str], ...] = ()
    """What all members agreed on in the manifest, in words: (name, words), as ("learns", "handwritten digits, …")."""
    noise_scale: Annotated[
        float | None, gauge("gradient_noise_scale_samples", "Batch size beyond which more samples in a step help little.")
    ] = None
    """Gradient noise scale of this node's data, in samples; None unless `numerics.noise_every` is set and it is known."""
    alone: float | None = None
    """Value as `value`, of the model before the last exchanges that `value` is after; None unless `evaluate_alone` is set."""
    relays: tuple[str, ...] = ()
    """Members through which others reach this node, as they cannot dial it."""
    relaying: Annotated[int, gauge("circuits_relayed", "Pairs of members between which this node relays.")] = 0
    """Pairs of members, or of a member and a newcomer, between which this node relays."""
    others: tuple[tuple[str, float | None], ...] = ()
    """Further metrics of the last evaluation, by name; null: not a number."""
    waited: Annotated[float | None, gauge("waited_ratio", "Share of the last 16 rounds spent waiting for late peers, 0 to 1.")] = None
    """Share of the last 16 rounds' time in which this node waited for peers longer than it usually does; None where it never waits."""
    waited_for: str = ""
    """The peer that it waited for longest in these rounds; "" for nobody."""
    behind: Annotated[int, gauge("rounds_behind", "Rounds that other members are ahead of this node; 0 for a single one.")] = 0
    """Rounds by which more peers than may lie are ahead of this node; 0 for a single round."""


class EngineFigures(msgspec.Struct, frozen=True):
    """Measurements of the engine, copied to the status. Names are those of `StatusSnapshot` and `Resources`.

    The loss is the mean of the local steps since the last figures: None without a step, nan if none has a loss, as where a step left
    the finite numbers, or no data are used any more.
    """

    local_steps: int = 0  # done since the beginning of this node's training
    loss: float | None = None
    epsilon: float | None = None  # privacy loss so far, at privacy.delta; None where steps are not noised
    distance: float | None = None  # distance in the exchanges since the last report; None if none showed it
    gpu: float | None = None  # utilisation by all processes, 0 to 1; None where there is no GPU, or it is not known
    gpu_memory_bytes: int | None = None  # GPU memory used by the engine; None likewise
    threads: int | None = None  # torch's threads in local steps on the CPU; None elsewhere, or before the first
    noise_scale: float | None = None  # tr Σ / |G|² in samples; None where it is not measured, or not known yet


def encode(snapshot: StatusSnapshot) -> bytes:
    """Return one JSON line, newline included."""
    return msgspec.json.encode(snapshot) + b"\n"


def decode(line: bytes) -> StatusSnapshot:
    """Return the snapshot in a line. Raises ValueError: not a snapshot, or of another version."""
    try:
        snapshot = msgspec.json.decode(line, type=StatusSnapshot)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not a status snapshot: {error}") from error
    if snapshot.version not in SNAPSHOT:
        raise ValueError(unreadable("a status", snapshot.version, SNAPSHOT, "look at it with the version that wrote it"))
    return snapshot
