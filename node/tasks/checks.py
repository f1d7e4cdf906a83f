"""Bounds of task parameters, which come from a manifest that someone else wrote."""

from __future__ import annotations

from collections.abc import Collection

from starling.gossip.errors import ConfigError
from starling.node.tasks.api import Source


def whole(name: str, value: int, low: int, high: int) -> None:
    """Raises ValueError unless `value` is an int (not a bool) in [low, high]."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name}: must be a whole number in [{low}, {high}], got {value!r}")


def real(name: str, value: float, low: float, high: float) -> None:
    """Raises ValueError unless `value` is a number in [low, high]; NaN is in no interval."""
    if type(value) not in (int, float) or not low <= value <= high:
        raise ValueError(f"{name}: must be a number in [{low:g}, {high:g}], got {value!r}")


def choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raises ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name}: must be one of {', '.join(sorted(choices))}, got {value!r}")


def own_problem(kind: str, source: Source, nodes: int) -> None:
    """A task that draws a problem for each of `nodes` nodes has no files, and as many shards as problems.

    Raises:
        ConfigError: a path is given, or the shards are others.
    """
    if source.path is not None:
        raise ConfigError(f"data: {kind} draws its own problem and reads no files, got {source.path}")
    if source.partition.shards != nodes:
        raise ConfigError(f"partition.shards: must be task.params.nodes = {nodes}, got {source.partition.shards}")
    if not 0 <= source.shard < nodes:
        raise ConfigError(f"shard: must be in [0, {nodes}), task.params.nodes, got {source.shard}")
