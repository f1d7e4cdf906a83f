"""The example files that ship with the package: manifests for `starling found`, scenarios for `starling simulate`."""

from __future__ import annotations

import difflib
from importlib import resources
from importlib.resources.abc import Traversable

from starling.gossip.errors import ConfigError

SUFFIX = ".toml"


def names() -> list[str]:
    """All examples, without their suffix."""
    files = resources.files("starling").joinpath("examples").iterdir()
    return sorted(file.name.removesuffix(SUFFIX) for file in files if file.name.endswith(SUFFIX))


def find(name: str) -> Traversable:
    """The file of an example.

    Raises:
        ConfigError: there is none of that name.
    """
    known, wanted = names(), name.removesuffix(SUFFIX)
    if wanted not in known:
        close = difflib.get_close_matches(wanted, known, n=1)
        hint = f", did you mean {close[0]}?" if close else ""
        raise ConfigError(f"example {name!r} is unknown{hint}; there are {', '.join(known)}; see `starling examples`")
    return resources.files("starling").joinpath("examples", wanted + SUFFIX)


def purpose(name: str) -> str:
    """The first line of the example: what it shows."""
    return find(name).read_text().partition("\n")[0].removeprefix("#").strip()
