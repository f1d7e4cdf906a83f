"""From a name and parameters in a configuration to an object, or one clear line why not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from starling.gossip.errors import ConfigError

T = TypeVar("T")


def build(section: str, catalogue: Mapping[str, Callable[..., T]], name: str, params: Mapping[str, Any]) -> T:
    """Make the object that `name` stands for.

    Args:
        section: where the name stands in the configuration, for the message: "task", "overlay", …
        catalogue: name -> constructor.
        name: which one.
        params: keyword arguments of the constructor.

    Raises:
        ConfigError: unknown name, unknown or missing parameter, or a value the constructor refuses.
    """
    if name not in catalogue:
        raise ConfigError(f"{section}.kind: {name!r} is unknown, choose one of {', '.join(sorted(catalogue))}")
    constructor = catalogue[name]
    known = [p for p in inspect.signature(constructor).parameters.values() if p.kind is not p.VAR_KEYWORD]
    names = {parameter.name for parameter in known}
    for key in params:
        if key not in names:
            raise ConfigError(f"{section}.{key}: {name} has no such key, it takes {', '.join(sorted(names)) or 'none'}")
    for parameter in known:
        if parameter.default is parameter.empty and parameter.name not in params:
            raise ConfigError(f"{section}.{parameter.name}: {name} needs it")
    try:
        return constructor(**params)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{section}: {error}") from error
