"""Which tasks there are, and how a person's own one is found.

A manifest comes from a stranger, and `module:function` names code. So nothing is called that does not declare itself a task
beforehand: a class with the methods of `starling.node.tasks.api.Task`, or a function whose return annotation is one.
"""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from types import MappingProxyType

from starling.gossip.catalogue import build
from starling.gossip.errors import ConfigError
from starling.node.config.schema import Scalar
from starling.node.tasks.api import Task
from starling.node.tasks.diagonal import Diagonal
from starling.node.tasks.digits import Digits
from starling.node.tasks.images import Images
from starling.node.tasks.logistic import Logistic
from starling.node.tasks.quadratic import Quadratic
from starling.node.tasks.synthetic import Synthetic
from starling.node.tasks.text import Text

TASKS: Mapping[str, Callable[..., Task]] = MappingProxyType(
    {
        "digits": Digits,
        "images": Images,
        "quadratic": Quadratic,
        "diagonal": Diagonal,
        "logistic": Logistic,
        "text": Text,
        "synthetic": Synthetic,
    }
)

MEMBERS = ("metric", "higher_is_better", "model", "data", "loss", "score")


def task(kind: str, params: Mapping[str, Scalar]) -> Task:
    """The task that a manifest names.

    Args:
        kind: a name in `TASKS`, or `module:function` installed on this machine (a class will do).
        params: keyword arguments of its constructor.

    Raises:
        ConfigError: unknown kind or parameter, a value out of bounds, or nothing installed here that declares itself a task.
    """
    if ":" in kind:
        made = build("task.params", {kind: _installed(kind)}, kind, params)
        if missing := [member for member in MEMBERS if not hasattr(made, member)]:
            raise ConfigError(f"task.kind: {kind!r} made a {type(made).__name__} without {', '.join(missing)}")
        return made
    if kind not in TASKS:
        raise ConfigError(
            f"task.kind: {kind!r} is unknown, choose one of {', '.join(sorted(TASKS))} or module:function"
        )
    return build("task.params", TASKS, kind, params)


def _installed(kind: str) -> Callable[..., Task]:
    module, _, name = kind.partition(":")
    if not (name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError(f"task.kind: {kind!r} is not of the form module:function")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"task.kind: {kind!r} is not installed here: {error}") from error
    if not _declares_task(found):
        raise ConfigError(
            f"task.kind: {kind!r} is no task: it must be a class with {', '.join(MEMBERS)}, "
            "or a function annotated as returning one"
        )
    return typing.cast("Callable[..., Task]", found)


def _declares_task(found: object) -> bool:
    made = found
    if inspect.isfunction(found):
        try:
            made = typing.get_type_hints(found).get("return")
        except (NameError, TypeError):
            return False
    return inspect.isclass(made) and all(hasattr(made, member) for member in MEMBERS)
