"""A status snapshot as Prometheus metrics: names with units, one help line each. A leaf: no I/O, imports only `node.status.snapshot`.

`_total` counts since the start and only rises; local steps go on from the checkpoint after a restart. All others are gauges. What is
not known is absent, never 0. docs/observing.md lists the names; a test compares.

Every distinct set of labels is a series that the database keeps, and peers choose their ids. So series per peer are for at most MAX_PEERS
of them, those with most exchanges committed, which a stranger must earn; all others are counted in `starling_peers`.

OpenMetrics lets a counter name an exemplar: `starling_exchanges_total` names the last exchange that ended so, by its peer, round and
number, as the record has them; its value is the seconds that it took.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, get_args, get_type_hints

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import CollectorRegistry
from prometheus_client.samples import Exemplar

from starling.node.status.snapshot import PeerStatus, Resources, StatusSnapshot, Transaction

MAX_PEERS: Final = 16  # number of peers with series of their own
MAX_EXEMPLAR: Final = 128  # characters of an exemplar's labels, names and values together; OpenMetrics 1.0.0
PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

STATES: Final[tuple[str, ...]] = get_args(get_type_hints(StatusSnapshot)["state"])
PEER_STATES: Final[tuple[str, ...]] = get_args(get_type_hints(PeerStatus)["state"])

_COMPUTED: Final[tuple[tuple[str, str, Callable[[StatusSnapshot], float]], ...]] = (
    ("starling_healthy", "1 when the node has no problem, else 0; /healthz says which.", lambda s: s.problem is None),
    ("starling_edges", "Peers that this node exchanges with.", lambda s: sum(peer.edge for peer in s.peers)),
)


class Declared(NamedTuple):
    """A metric that a field declares by `snapshot.gauge` or `counter`."""

    field: str
    kind: str
    name: str
    text: str
    zero_is_absent: bool


def declared(struct: type[msgspec.Struct]) -> tuple[Declared, ...]:
    """Metrics of a struct, in the order of its fields."""
    hints = get_type_hints(struct, include_extras=True)
    metadata = ((name, each) for name in struct.__struct_fields__ for each in getattr(hints[name], "__metadata__", ()))
    return tuple(
        Declared(field=name, text=each.description or "", **each.extra)
        for name, each in metadata
        if isinstance(each, msgspec.Meta) and each.extra
    )


_OF_NODE: Final = declared(StatusSnapshot)
_OF_MACHINE: Final = declared(Resources)
_OF_PEER: Final = declared(PeerStatus)


def exposition(snapshot: StatusSnapshot, accept: str = "") -> tuple[bytes, str]:
    """Return the answer to a scrape: body and content type; OpenMetrics where the Accept header names it, else the older text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(snapshot))
    if "application/openmetrics-text" in accept:
        body: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
        return body, OPEN
    return generate_latest(registry), PLAIN


def health(snapshot: StatusSnapshot) -> tuple[bool, str]:
    """Return whether the node has no problem, and one line with its state and problem."""
    well = snapshot.problem is None and snapshot.state != "failed"
    return well, f"{snapshot.state}: {snapshot.problem}" if snapshot.problem is not None else snapshot.state


@dataclass(frozen=True, eq=False)
class _Families:
    """Satisfies the library's Collector."""

    snapshot: StatusSnapshot

    def collect(self) -> Iterable[Metric]:
        return _collected(self.snapshot)


def _collected(snapshot: StatusSnapshot) -> Iterator[Metric]:
    yield from _of_node(snapshot)
    yield from _of_states(snapshot)
    yield _exchanges(snapshot)
    yield from _of_peers(snapshot.peers)


def _of_node(snapshot: StatusSnapshot) -> Iterator[Metric]:
    about = {
        "peer": snapshot.peer,
        "swarm": snapshot.swarm,
        "name": snapshot.name,
        "task": snapshot.task,
        "metric": snapshot.metric,
        "algorithm": snapshot.algorithm,
        "overlay": snapshot.overlay,
        "device": snapshot.device or "",
    }
    yield InfoMetricFamily("starling_node", "Who this node is and what it trains.", about)
    for name, text, of in _COMPUTED:
        yield _family("gauge", name, text, of(snapshot))
    for struct, metrics in ((snapshot, _OF_NODE), (snapshot.resources, _OF_MACHINE)):
        for metric in metrics:
            if (value := getattr(struct, metric.field)) is not None and (value or not metric.zero_is_absent):
                yield _family(metric.kind, metric.name, metric.text, value)
    if snapshot.value is not None:
        value_of = {snapshot.metric: snapshot.value}
        yield _family("gauge", "starling_value", "Last evaluation on held-out data.", value_of, "metric")


def _of_states(snapshot: StatusSnapshot) -> Iterator[Metric]:
    states = {each: each == snapshot.state for each in STATES}
    yield _family("gauge", "starling_state", "1 for the state that the node is in, 0 for all others.", states, "state")
    known: Counter[str] = Counter(peer.state for peer in snapshot.peers)
    of_peers = {state: known[state] for state in PEER_STATES}
    yield _family("gauge", "starling_peers", "Known peers by their state.", of_peers, "state")


def _exchanges(snapshot: StatusSnapshot) -> Metric:
    family = CounterMetricFamily("starling_exchanges", "Exchanges by how they ended, both ends counted.", labels=["outcome"])
    last: dict[str, Exemplar] = {each.outcome: exemplar for each in snapshot.transactions if (exemplar := _exemplar(each)) is not None}
    for outcome, count in msgspec.structs.asdict(snapshot.exchanges).items():
        family.add_metric([outcome], count, exemplar=last.get(outcome))
    return family


def _of_peers(peers: Iterable[PeerStatus]) -> Iterator[Metric]:
    met = (peer for peer in peers if peer.committed or peer.trusted)
    best = heapq.nlargest(MAX_PEERS, met, key=lambda peer: (peer.trusted, peer.committed, peer.peer))
    for metric in _OF_PEER:
        values = {peer.peer: value for peer in best if (value := getattr(peer, metric.field)) is not None}
        yield _family(metric.kind, metric.name, metric.text, values, "peer")


def _exemplar(ended: Transaction) -> Exemplar | None:
    """Return an exchange that began, for a counter; None for one that is too long to be named, or whose seconds are not known."""
    labels = {"peer": ended.peer, "round": str(ended.round), "number": str(ended.number)}
    if ended.seconds is None or sum(len(name) + len(value) for name, value in labels.items()) > MAX_EXEMPLAR:
        return None
    return Exemplar(labels, ended.seconds, ended.time_s)


def _family(kind: str, name: str, text: str, values: float | Mapping[str, float], label: str = "") -> Metric:
    """Return a metric with one value, or one value per label."""
    family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    made = family(name, text, labels=[label] if label else [])
    for each, value in values.items() if isinstance(values, Mapping) else [("", values)]:
        made.add_metric([each] if label else [], value)
    return made
