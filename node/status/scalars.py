"""Snapshots of one node as points of charts, for trackers of experiments. A leaf, as all of `starling.node.status`."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from starling.node.status.snapshot import Point, StatusSnapshot


class Scalar(NamedTuple):
    """One point of one chart."""

    tag: str
    round: int
    time_s: float
    """Unix time."""
    value: float


def scalars(run: Iterable[StatusSnapshot]) -> Iterator[Scalar]:
    """Yield every point of a run's curves once, and its other figures once per round, in the order of the snapshots.

    Args:
        run: whole snapshots of one node, oldest first.
    """
    before: StatusSnapshot | None = None
    for now in run:
        if before is not None and now.uptime_s < before.uptime_s:
            before = None  # another start of the node, with new curves
        for tag, was, curve in (
            ("loss", before.loss_curve if before else (), now.loss_curve),
            (f"evaluation/{now.metric or 'value'}", before.value_curve if before else (), now.value_curve),
            ("consensus_distance", before.distance_curve if before else (), now.distance_curve),
        ):
            began = now.time_s - now.uptime_s
            yield from (Scalar(tag, each.round, began + each.time_s, each.value) for each in _new(was, curve))
        if before is None or now.round != before.round:
            for tag, value in _figures(now):
                if value is not None:
                    yield Scalar(tag, now.round, now.time_s, value)
        before = now


def _new(before: tuple[Point, ...], now: tuple[Point, ...]) -> Iterator[Point]:
    return (point for point in now if not before or point.time_s > before[-1].time_s)


def _figures(now: StatusSnapshot) -> Iterator[tuple[str, float | None]]:
    if now.value_round == now.round:
        yield "evaluation/before_exchanges", now.alone
    yield "speed/local_steps_per_second", now.steps_per_s
    yield "speed/paced_local_steps_per_second", now.paced_per_s
    yield "swarm/members", now.members
    yield "swarm/edges", sum(peer.edge for peer in now.peers)
    yield "traffic/bytes_sent", now.bytes_sent
    yield "traffic/bytes_received", now.bytes_received
    for outcome in now.exchanges.__struct_fields__:
        yield f"exchanges/{outcome}", getattr(now.exchanges, outcome)
    yield "resources/cpu_cores", now.resources.cpu
    yield "resources/memory_bytes", now.resources.memory_bytes
    yield "resources/gpu_busy", now.resources.gpu
    yield "gradient_noise_scale", now.noise_scale
    yield "privacy/epsilon", now.epsilon
