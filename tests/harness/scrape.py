"""A node's metrics as read by Prometheus' own parsers."""

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from starling.node.status.metrics import OPEN, PLAIN, exposition
from starling.node.status.snapshot import PeerStatus, Resources
from tests.harness.snapshots import snapshot

PARSERS = {"": (PLAIN, parse_plain), "application/openmetrics-text; version=1.0.0": (OPEN, parse_open)}


def full():
    """Return a snapshot in which every figure is known."""
    return snapshot(
        epsilon=1.5,
        delta=1e-5,
        distance=0.01,
        paced_per_s=200.0,
        noise_scale=900.0,
        waited=0.25,
        behind=3,
        up_limit_bytes_per_s=10**6,
        down_limit_bytes_per_s=10**6,
        resources=Resources(cpu=1.2, memory_bytes=5 * 10**8, disk_bytes=10**6, gpu=0.5, gpu_memory_bytes=10**9, threads=2, tasks=93),
        peers=(PeerStatus("12D3KooWalive01", "alive", edge=True, committed=3, rtt_s=0.01, staleness=0.1, clipped=0.2, score=1.0),),
    )


def exported():
    """Return {name: labels} of every sample that a node can export."""
    found = {}
    for family in PARSERS[""][1](exposition(full())[0].decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found
