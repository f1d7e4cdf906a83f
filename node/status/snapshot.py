"""The status of a node: one immutable snapshot, JSON on a unix socket. A leaf: imports nothing of Starling.

Missing is None, never 0. Times are seconds; rates are per second; sizes are bytes. New fields are appended with a default.
"""

from __future__ import annotations

from typing import Literal

import msgspec

VERSION = 1


class Exchanges(msgspec.Struct, frozen=True):
    """How this node's exchanges ended, both ends counted."""

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
    rtt_s: float | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    committed: int = 0
    faults: int = 0
    last_seen_s: float | None = None
    """Seconds since the last message from it, at the time of the snapshot."""
    addresses: tuple[str, ...] = ()
    standing: Literal["probation", "active", "quarantine", "ban"] = "probation"
    """Derived from its behaviour."""
    score: float = 0.0
    """Decayed faults; higher is worse."""
    contribution: float = 0.0
    """Decayed count of committed exchanges, up to 20; higher is better."""
    staleness: float | None = None
    """Share of recent exchanges that it did not answer."""
    clipped: float | None = None
    """Share of recent exchanges in which what it sent was clipped."""
    trusted: bool = False
    """By this node's owner."""
    shut_out_s: float | None = None
    """Seconds that a quarantine or ban still lasts; None without an end, or without either."""
    why: str = ""
    """Of a ban."""
    inviter: str = ""
    """The member that invited it and is liable for it; "" for the founder, and in open swarms."""


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

    cpu: float | None = None
    """Cores in use, mean since the last snapshot: 0.5 is half of one."""
    memory_bytes: int | None = None
    """Resident."""
    disk_bytes: int | None = None
    """Of the run directory."""
    gpu: float | None = None
    """GPU utilisation by all processes, 0 to 1."""
    gpu_memory_bytes: int | None = None


class Transaction(msgspec.Struct, frozen=True):
    """One exchange with one peer, as it ended."""

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
    """Share of the difference that was kept after clipping, 0 to 1: 1 is not clipped; None where it is not known."""
    seconds: float | None = None
    """From the first frame about it to the end."""


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
    uptime_s: float
    state: Literal["starting", "joining", "training", "waiting", "finished", "leaving", "failed"]
    problem: str | None = None
    """What is wrong, with the next command to try; None when nothing is."""
    task: str = ""
    metric: str = ""
    """Name of the evaluation figure: accuracy, bits_per_byte, error."""
    higher_is_better: bool = True
    algorithm: str = ""
    overlay: str = ""
    parameters: int | None = None
    """d, scalars in the model."""
    device: str | None = None
    round: int = 0
    """Rounds done."""
    rounds: int = 0
    """0: endless."""
    local_steps: int = 0
    steps_per_s: float | None = None
    """Local steps per second of computing time, over the last 16 rounds."""
    loss: float | None = None
    """Mean training loss of the last round."""
    value: float | None = None
    """Last evaluation on held-out data."""
    value_round: int | None = None
    members: int = 1
    """Members believed alive, this one included."""
    bytes_sent: int = 0
    bytes_received: int = 0
    payload_bytes: int = 0
    """Payload bytes sent in committed exchanges."""
    up_bytes_per_s: float | None = None
    down_bytes_per_s: float | None = None
    exchanges: Exchanges = Exchanges()
    engine_restarts: int = 0
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
    epsilon: float | None = None
    """Privacy loss of this node's data so far (differential privacy); None where steps are not noised."""
    delta: float | None = None
    """Of that epsilon."""
    byzantine: bool = False
    """It attacks its swarm because its owner asked it to; `problem` says how."""
    up_limit_bytes_per_s: int | None = None
    """The owner's cap on what is sent; None: none."""
    down_limit_bytes_per_s: int | None = None
    resources: Resources = Resources()
    paced_per_s: float | None = None
    """Local steps per second of all time, waiting for peers included, over the same rounds as `steps_per_s`: never above it."""
    distance: float | None = None
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


def encode(snapshot: StatusSnapshot) -> bytes:
    """One JSON line, newline included."""
    return msgspec.json.encode(snapshot) + b"\n"


def decode(line: bytes) -> StatusSnapshot:
    """The snapshot in a line.

    Raises:
        ValueError: not a snapshot, or of another version.
    """
    try:
        snapshot = msgspec.json.decode(line, type=StatusSnapshot)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not a status snapshot: {error}") from error
    if snapshot.version != VERSION:
        raise ValueError(f"status snapshot version {snapshot.version}, this program reads {VERSION}")
    return snapshot
