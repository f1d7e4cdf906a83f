"""Convert Python values to the `KEY=VALUE` texts of `--set`, by which the Python API sets keys of a manifest, a scenario or node.toml."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path


def assignments(values: Mapping[str, object]) -> list[str]:
    """Return `key=value` for each dotted key; keys whose value is None are left out."""
    return [f"{key}={as_toml(value)}" for key, value in values.items() if value is not None]


def as_toml(value: object) -> str:
    """Return a string, number, boolean, path, list or mapping as a TOML value."""
    match value:
        case Mapping():
            return "{" + ", ".join(f"{json.dumps(str(key))} = {as_toml(inner)}" for key, inner in value.items()) + "}"
        case str() | Path():
            return json.dumps(str(value))
        case Sequence():
            return f"[{', '.join(map(as_toml, value))}]"
        case bool():
            return str(value).lower()
        case _:
            return str(value)
