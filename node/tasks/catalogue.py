"""The task that a manifest names. Torch-free until it is made; the table is in `starling.node.catalogues`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from starling.gossip.errors import ConfigError
from starling.node.catalogues import TASKS

if TYPE_CHECKING:
    from starling.node.config.schema import Scalar
    from starling.node.tasks.api import Task

__all__ = ["TASKS", "task"]


def task(kind: str, params: Mapping[str, Scalar]) -> Task:
    """The task that a manifest names. The machine's owner has agreed to import what "module:Class" names (`node.config.consent`).

    Args:
        kind: a name in TASKS, or "module:Class" (or function) installed on this machine.
        params: keyword arguments of its constructor.

    Raises:
        ConfigError: unknown kind or parameter, a value out of bounds, or nothing installed here that declares itself a task.
    """
    made = TASKS.build("task.params", kind, params, trusted=True)
    if missing := [member for member in TASKS.members if not hasattr(made, member)]:
        raise ConfigError(f"task.kind: {kind!r} made a {type(made).__name__} without {', '.join(missing)}")
    return made
