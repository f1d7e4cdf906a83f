"""A status snapshot as Prometheus metrics: names with units, one help line each. A leaf: no I/O, imports only `node.status.snapshot`.

`_total` counts since the start and only rises; local steps go on from the checkpoint after a restart. All others are gauges. What is
not known is absent, never 0. docs/observing.md lists the names; a test compares.

Every distinct set of labels is a series that the database keeps, and peers choose their ids. So series per peer are for at most MAX_PEERS
of them, those with most exchanges committed, which a stranger must earn; all others are counted in `starling_peers`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, get_args, get_type_hints

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import CollectorRegistry

from starling.node.status.snapshot import Exchanges, PeerStatus, StatusSnapshot

MAX_PEERS: Final = 16
"""With series of their own."""
PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

STATES: Final[tuple[str, ...]] = get_args(get_type_hints(StatusSnapshot)["state"])
PEER_STATES: Final[tuple[str, ...]] = get_args(get_type_hints(PeerStatus)["state"])
OUTCOMES: Final = Exchanges.__struct_fields__

Of = Callable[[StatusSnapshot], float | None]
OfPeer = Callable[[PeerStatus], float | None]

# `_total` is not part of a counter's name here: the library adds it.
_COUNTERS: Final[tuple[tuple[str, str, Of], ...]] = (
    ("starling_local_steps", "Optimizer steps done; goes on from the checkpoint after a restart.", lambda s: s.local_steps),
    ("starling_bytes_sent", "Bytes of frames sent to peers.", lambda s: s.bytes_sent),
    ("starling_bytes_received", "Bytes of frames received from peers.", lambda s: s.bytes_received),
    ("starling_payload_bytes_sent", "Payload bytes sent in committed exchanges.", lambda s: s.payload_bytes),
    ("starling_engine_restarts", "Engine processes that died or hung and were replaced.", lambda s: s.engine_restarts),
)  # fmt: skip
_GAUGES: Final[tuple[tuple[str, str, Of], ...]] = (
    ("starling_healthy", "1 when the node has no problem, else 0; /healthz says which.", lambda s: s.problem is None),
    ("starling_byzantine", "1 when this node attacks its swarm because its owner asked it to.", lambda s: s.byzantine),
    ("starling_uptime_seconds", "Since the start.", lambda s: s.uptime_s),
    ("starling_round", "Rounds done.", lambda s: s.round),
    ("starling_rounds", "Length of the run in rounds; absent where it is endless.", lambda s: s.rounds or None),
    ("starling_parameters", "Scalars in the model.", lambda s: s.parameters),
    ("starling_steps_per_second", "Local steps per second of computing time.", lambda s: s.steps_per_s),
    ("starling_paced_steps_per_second", "Local steps per second, waiting for peers included.", lambda s: s.paced_per_s),
    ("starling_loss", "Mean training loss of the last round.", lambda s: s.loss),
    ("starling_value_round", "Round of the last evaluation on held-out data.", lambda s: s.value_round),
    ("starling_consensus_distance", "Root mean square per parameter of the difference to a peer, median of them.", lambda s: s.distance),
    ("starling_members", "Members believed alive, this node included.", lambda s: s.members),
    ("starling_edges", "Peers that this node exchanges with.", lambda s: sum(peer.edge for peer in s.peers)),
    ("starling_up_limit_bytes_per_second", "The owner's cap on what is sent; absent without.", lambda s: s.up_limit_bytes_per_s),
    ("starling_down_limit_bytes_per_second", "The owner's cap on what is received; absent without.", lambda s: s.down_limit_bytes_per_s),
    ("starling_cpu_cores", "Cores kept busy by both processes.", lambda s: s.resources.cpu),
    ("starling_resident_memory_bytes", "Of both processes.", lambda s: s.resources.memory_bytes),
    ("starling_disk_bytes", "Of the run directory.", lambda s: s.resources.disk_bytes),
    ("starling_gpu_busy_ratio", "GPU utilisation by all processes, 0 to 1.", lambda s: s.resources.gpu),
    ("starling_gpu_memory_bytes", "Of the GPU, taken by this node.", lambda s: s.resources.gpu_memory_bytes),
    ("starling_privacy_epsilon", "Privacy loss of this node's data (differential privacy); absent without noise.", lambda s: s.epsilon),
    ("starling_privacy_delta", "Of that epsilon.", lambda s: s.delta),
)  # fmt: skip
_PEER_GAUGES: Final[tuple[tuple[str, str, OfPeer], ...]] = (
    ("starling_peer_rtt_seconds", "Time of a probe to this peer and back.", lambda p: p.rtt_s),
    ("starling_peer_score", "Decayed faults of this peer; higher is worse.", lambda p: p.score),
    ("starling_peer_staleness_ratio", "Share of recent exchanges that this peer did not answer, 0 to 1.", lambda p: p.staleness),
    ("starling_peer_clipped_ratio", "Share of recent exchanges in which what this peer sent was clipped, 0 to 1.", lambda p: p.clipped),
)  # fmt: skip
_PEER_COUNTERS: Final[tuple[tuple[str, str, OfPeer], ...]] = (
    ("starling_peer_exchanges_committed", "Exchanges committed with this peer.", lambda p: p.committed),
    ("starling_peer_bytes_sent", "Bytes of frames sent to this peer.", lambda p: p.bytes_sent),
    ("starling_peer_bytes_received", "Bytes of frames received from this peer.", lambda p: p.bytes_received),
)


def exposition(snapshot: StatusSnapshot, accept: str = "") -> tuple[bytes, str]:
    """The answer to a scrape.

    Args:
        snapshot: the state of the node.
        accept: the scraper's Accept header: OpenMetrics where it is named, else the older text format.

    Returns:
        (body, content type)
    """
    families = _Families(tuple(_collected(snapshot)))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(families)
    if "application/openmetrics-text" in accept:
        body: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
        return body, OPEN
    return generate_latest(registry), PLAIN


def health(snapshot: StatusSnapshot) -> tuple[bool, str]:
    """Whether the node has no problem, and one line with its state and problem."""
    well = snapshot.problem is None and snapshot.state != "failed"
    return well, f"{snapshot.state}: {snapshot.problem}" if snapshot.problem is not None else snapshot.state


@dataclass(frozen=True, eq=False)
class _Families:
    """Satisfies the library's Collector."""

    found: tuple[Metric, ...]

    def collect(self) -> Iterable[Metric]:
        return self.found

    def describe(self) -> Iterable[Metric]:
        return ()


def _collected(snapshot: StatusSnapshot) -> Iterator[Metric]:
    about = {
        "peer": snapshot.peer, "swarm": snapshot.swarm, "name": snapshot.name, "task": snapshot.task, "metric": snapshot.metric,
        "algorithm": snapshot.algorithm, "overlay": snapshot.overlay, "device": snapshot.device or "",
    }  # fmt: skip
    yield InfoMetricFamily("starling_node", "Who this node is and what it trains.", about)
    for name, doc, of in _COUNTERS:
        yield CounterMetricFamily(name, doc, value=of(snapshot))
    for name, doc, of in _GAUGES:
        if (value := of(snapshot)) is not None:
            yield GaugeMetricFamily(name, doc, value)
    if snapshot.value is not None:
        value_of = GaugeMetricFamily("starling_value", "Last evaluation on held-out data.", labels=["metric"])
        value_of.add_metric([snapshot.metric], snapshot.value)
        yield value_of
    yield _counted("starling_state", "1 for the state that the node is in, 0 for all others.", "state", {
        each: each == snapshot.state for each in STATES
    })  # fmt: skip
    yield _counted("starling_peers", "Known peers by their state.", "state", {
        each: sum(peer.state == each for peer in snapshot.peers) for each in PEER_STATES
    })  # fmt: skip
    ends = CounterMetricFamily(
        "starling_exchanges", "Exchanges by how they ended, both ends counted.", labels=["outcome"]
    )
    for outcome in OUTCOMES:
        ends.add_metric([outcome], getattr(snapshot.exchanges, outcome))
    yield ends
    yield from _of_peers(snapshot.peers)


def _counted(name: str, doc: str, label: str, values: dict[str, float]) -> Metric:
    family = GaugeMetricFamily(name, doc, labels=[label])
    for each, value in values.items():
        family.add_metric([each], value)
    return family


def _of_peers(peers: tuple[PeerStatus, ...]) -> Iterator[Metric]:
    """Of the peers with most committed exchanges; trusted ones first."""
    met = (peer for peer in peers if peer.committed or peer.trusted)
    best = heapq.nlargest(MAX_PEERS, met, key=lambda peer: (peer.trusted, peer.committed, peer.peer))
    for name, doc, of in _PEER_GAUGES:
        gauge = GaugeMetricFamily(name, doc, labels=["peer"])
        for peer in best:
            if (value := of(peer)) is not None:
                gauge.add_metric([peer.peer], value)
        yield gauge
    for name, doc, of in _PEER_COUNTERS:
        counter = CounterMetricFamily(name, doc, labels=["peer"])
        for peer in best:
            counter.add_metric([peer.peer], of(peer) or 0)
        yield counter
