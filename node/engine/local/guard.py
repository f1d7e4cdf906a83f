"""Restore the last good model and its buffers after a step whose result is not finite.

Shapes: d parameters.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from starling.node.engine.local.local_model import LocalModel


class LastGood(Protocol):
    """Stores the last good parameters."""

    def mark(self, x: Tensor) -> None:
        """Store x (d,) as the last good model."""

    def get(self) -> Tensor:
        """Return the last good parameters (d,)."""


class Copied:
    """Stores the last good parameters in a copy."""

    def __init__(self, x: Tensor) -> None:
        self._x = x.clone()

    def mark(self, x: Tensor) -> None:
        self._x.copy_(x)

    def get(self) -> Tensor:
        return self._x


class Stored:
    """Reads the last good parameters of a large model from its last checkpoint, else the initial ones: no copy is in memory."""

    def __init__(self, checkpoint: Callable[[], Tensor | None], beginning: Callable[[], Tensor]) -> None:
        self._checkpoint, self._beginning = checkpoint, beginning

    def mark(self, x: Tensor) -> None:
        """Do nothing: the next checkpoint has them."""

    def get(self) -> Tensor:
        """Read the parameters from the checkpoint."""
        found = self._checkpoint()
        return self._beginning() if found is None else found


class Guard:
    """Restores a model after a step that failed.

    Attributes:
        checkpoint: reads the model (d,) of the last checkpoint; None if there is none.
    """

    def __init__(self, model: LocalModel) -> None:
        self._model = model
        self.checkpoint: Callable[[], Tensor | None] = lambda: None
        stored = Stored(self._read, model.beginning)
        self._last: LastGood = stored if model.large else Copied(model.x)

    def _read(self) -> Tensor | None:
        return self.checkpoint()

    def mark(self) -> None:
        """Mark the current model and buffers as good."""
        self._last.mark(self._model.x)
        self._model.side.mark()

    def reset_buffers(self) -> None:
        """Undo a forward pass's changes of buffers."""
        self._model.side.reset_buffers()

    def restore(self) -> None:
        """Return to the last good model and its buffers."""
        self._model.x.copy_(self._last.get())
        self.reset_buffers()
