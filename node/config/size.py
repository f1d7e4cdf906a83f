"""Sizes of a built-in task (parameters, samples), computed from its keys before any of it is made. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starling.gossip.catalogue import construct
from starling.node.catalogues import TASKS

if TYPE_CHECKING:
    from starling.node.config.schema import TaskSection
    from starling.node.tasks.keys import Size


def of(task: TaskSection) -> Size | None:
    """Return the size of a task; None: its keys do not say it, as the model is not Starling's own.

    Raises ConfigError: values of its keys do not fit each other.
    """
    if not (keyed := TASKS.keyed(task.kind)):
        return None
    sized = getattr(construct("task", task.kind, keyed, task.params()), "size", None)
    return None if sized is None else sized()
