"""State that a script stores next to its node's checkpoint: the state of its optimisers, schedulers and whatever else has a `state_dict`.

Written by the script into its own run directory, and read with torch's loader of plain tensors alone, which runs no code of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from starling.gossip.errors import ConfigError

_NAME = "script-{}.state"


class ScriptState:
    """State of the objects given by name, stored next to the node's checkpoint."""

    def __init__(self, folder: Path, objects: Mapping[str, Any] | None) -> None:
        """Check the objects. Raises ConfigError: one has no state."""
        self._folder, self._objects = folder, dict(objects or {})
        for name, each in self._objects.items():
            if not (callable(getattr(each, "state_dict", None)) and callable(getattr(each, "load_state_dict", None))):
                raise ConfigError(f"state: {name!r} must have state_dict and load_state_dict, got a {type(each).__name__}")

    def write(self, round: int) -> None:
        """Write the current state, for a node that resumes in `round`; only the two newest are kept. Raises OSError."""
        if not self._objects:
            return
        path = self._folder / _NAME.format(round)
        temporary = path.with_suffix(".writing")
        torch.save({name: each.state_dict() for name, each in self._objects.items()}, temporary)
        temporary.chmod(0o600)
        temporary.replace(path)
        for old in self._rounds()[:-2]:
            (self._folder / _NAME.format(old)).unlink(missing_ok=True)

    def restore(self, round: int) -> int | None:
        """Load the newest state of `round` or earlier -> its round; None: there is none. Raises ConfigError: it does not fit."""
        known = [each for each in self._rounds() if each <= round]
        if not known or not self._objects:
            return None
        path = self._folder / _NAME.format(known[-1])
        try:
            states = torch.load(path, map_location="cpu", weights_only=True)
            for name, each in self._objects.items():
                each.load_state_dict(states[name])
        except Exception as error:
            raise ConfigError(f"state: {path} does not fit these objects: {error}; remove it to begin with them as they are") from error
        return known[-1]

    def _rounds(self) -> list[int]:
        """Return the rounds of which there is a state, ascending."""
        first, last = _NAME.split("{}")
        names = (each.name.removeprefix(first).removesuffix(last) for each in self._folder.glob(_NAME.format("*")))
        return sorted(int(name) for name in names if name.isdecimal())
