"""Copies of a module's buffers after the last successful local step, to undo one that fails.

A comparison after each round shows which ones training changes; all others, as masks and tables, are not copied in steps.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn


class SavedBuffers:
    """Copies of a module's buffers of these names; changes of `watched` ones by training are reported once."""

    def __init__(self, module: nn.Module, names: Collection[str], watched: Collection[str]) -> None:
        self._places = {name: (module.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in names}
        self._watched = set(watched)
        self._steady = set[str]()  # buffers that no round so far has changed
        self._at_mark = {name: self._now(name).clone() for name in self._places}
        self._saved = dict(self._at_mark)

    def __bool__(self) -> bool:
        """Tell if there are any."""
        return bool(self._places)

    def keep(self) -> None:
        """Save the buffers that may have changed: the step counts."""
        with torch.no_grad():
            for name in self._places.keys() - self._steady:
                now, saved = self._now(name), self._saved[name]
                if saved is self._at_mark[name] or saved.shape != now.shape:
                    self._saved[name] = now.clone()
                else:
                    saved.copy_(now)

    def reset(self) -> None:
        """Restore the saved buffers: the step does not count."""
        with torch.no_grad():
            for name, saved in self._saved.items():
                put(self._now(name), saved)

    def mark(self) -> list[str]:
        """Compare the buffers after a round -> watched ones that changed for the first time."""
        changed = {name for name in self._places if not same(self._now(name), self._at_mark[name])}
        self._steady = (self._steady | self._places.keys()) - changed
        for name in changed:
            self._at_mark[name] = self._now(name).clone()
        self._saved = dict(self._at_mark)
        found = sorted(self._watched & changed)
        self._watched.difference_update(found)
        return found

    def _now(self, name: str) -> Tensor:
        module, key = self._places[name]
        now: Tensor = getattr(module, key)
        return now


def same(now: Tensor, before: Tensor | None) -> bool:
    """Return whether two tensors are equal; None is equal to nothing."""
    return before is not None and now.shape == before.shape and torch.equal(now, before)


def put(place: Tensor, value: Tensor) -> None:
    """Set a buffer to a value, also of another shape."""
    if place.shape == value.shape:
        place.copy_(value)
    else:
        place.data = value.clone()
