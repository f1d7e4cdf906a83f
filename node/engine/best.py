"""The best model of a node so far, by its metric on held-out data: one file next to the checkpoint, in the form of an exported model.

It is the model that was measured, with the normalisation statistics it was measured with. A better one is held in memory and written with
the next checkpoint, so that it costs no more writes than that does, and a crash at most one of them. A large one is written at once, as
its copy would stay in memory through the rounds in between.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from torch import Tensor

from starling.node.engine import tensor_file

NAME = "best.safetensors"


class Model(Protocol):
    """A model as it was measured."""

    def entries(self) -> dict[str, Tensor]:
        """Return the tensors for a file; not copied."""

    def facts(self) -> Mapping[str, str]:
        """Return the facts for such a file."""


class Best:
    """The best model of one node; a file of another swarm, or a damaged one, is replaced by the next better model.

    Args:
        path: of the file; None: none is stored.
        swarm: digest of the manifest.
        schema: digest of parameter names and shapes, hex.
        higher_is_better: whether that is so of the metric.
        large: do not hold a model in memory that can be written.

    Attributes:
        value: of the metric; None before the first.
        round: rounds that the model had done; None likewise.
    """

    def __init__(self, path: Path | None, *, swarm: str, schema: str, higher_is_better: bool, large: bool = False) -> None:
        self._path = path
        self._facts: dict[str, str | int] = {"kind": "export", "swarm": swarm, "schema": schema}
        self._higher = higher_is_better
        self._large = large
        self._waiting: Model | None = None  # best model that is not written yet
        self.value: float | None = None
        self.round: int | None = None
        if path is not None:
            with suppress(OSError, ValueError):
                self._take_up(tensor_file.facts(path))

    def _take_up(self, facts: dict[str, str | int]) -> None:
        value, at = float(facts.get("value", math.nan)), facts.get("round")
        ours = all(facts.get(name) == mine for name, mine in self._facts.items())
        if ours and math.isfinite(value) and isinstance(at, int):
            self.value, self.round = value, at

    def offer(self, value: float, round: int, model: Model) -> None:
        """Store a model if it is better than all before."""
        if self._path is None or not math.isfinite(value):
            return
        if self.value is None or (value > self.value if self._higher else value < self.value):
            self.value, self.round, self._waiting = value, round, model
            if self._large:
                with suppress(OSError):  # the checkpoint reports a full disk, and tries again
                    self.write()

    def write(self) -> None:
        """Write the model if it is newer than the file. Raises OSError: it could not, and is tried again the next time."""
        if self._path is None or self._waiting is None or self.round is None:
            return
        facts = {**self._facts, **self._waiting.facts(), "round": self.round, "value": repr(self.value)}
        tensor_file.save(self._path, self._waiting.entries(), facts).replace(self._path)
        tensor_file.flush_folder(self._path.parent)
        self._waiting = None

    def copy(self, target: Path) -> bool:
        """Write the model to another file too; False if there is none yet. Raises OSError."""
        if self._path is None or self.value is None:
            return False
        self.write()
        tensor_file.copy(self._path, target).replace(target)
        return True
