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

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import CollectorRegistry

from starling.node.status.snapshot import Exchanges, Exported, PeerStatus, Resources, StatusSnapshot

MAX_PEERS: Final = 16
"""With series of their own."""
PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

STATES: Final[tuple[str, ...]] = get_args(get_type_hints(StatusSnapshot)["state"])
PEER_STATES: Final[tuple[str, ...]] = get_args(get_type_hints(PeerStatus)["state"])
OUTCOMES: Final = Exchanges.__struct_fields__

_COMPUTED: Final[tuple[tuple[str, str, Callable[[StatusSnapshot], float]], ...]] = (
    ("starling_healthy", "1 when the node has no problem, else 0; /healthz says which.", lambda s: s.problem is None),
    ("starling_edges", "Peers that this node exchanges with.", lambda s: sum(peer.edge for peer in s.peers)),
)  # fmt: skip


def exported(struct: type[msgspec.Struct]) -> dict[str, Exported]:
    """Metrics declared on the fields of a struct, by field."""
    hints = get_type_hints(struct, include_extras=True)
    metadata = ((name, each) for name in struct.__struct_fields__ for each in getattr(hints[name], "__metadata__", ()))
    return {name: each for name, each in metadata if isinstance(each, Exported)}


_OF_NODE: Final = exported(StatusSnapshot)
_OF_MACHINE: Final = exported(Resources)
_OF_PEER: Final = exported(PeerStatus)


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
    for name, doc, of in _COMPUTED:
        yield GaugeMetricFamily(name, doc, of(snapshot))
    for struct, fields in ((snapshot, _OF_NODE), (snapshot.resources, _OF_MACHINE)):
        for field, metric in fields.items():
            if (value := getattr(struct, field)) is not None and (value or not metric.zero_is_absent):
                family = _family(metric)
                family.add_metric([], value)
                yield family
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
    for field, metric in _OF_PEER.items():
        family = _family(metric, "peer")
        for peer in best:
            if (value := getattr(peer, field)) is not None:
                family.add_metric([peer.peer], value)
        yield family


def _family(metric: Exported, *labels: str) -> CounterMetricFamily | GaugeMetricFamily:
    family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return family(metric.name, metric.help, labels=labels)
