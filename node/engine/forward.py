"""Computation of a task's loss, chosen once: plain, compiled, in lower precision, or with recomputed activations."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

Loss = Callable[[nn.Module, Any], Tensor | None]
"""(model, batch) -> scalar; None: the batch is left out."""
Compile = Callable[[Loss], Loss]
Context = Callable[[], AbstractContextManager[Any]]


class Compiled:
    """A loss compiled by `compiler`; uncompiled once that fails, which is added to `notes`."""

    def __init__(self, loss: Loss, compiler: Compile, notes: list[str]) -> None:
        self._plain = self._loss = loss
        self._notes = notes
        try:
            self._loss = compiler(loss)
        except Exception as error:  # noqa: BLE001 — whatever a compiler has
            self._note(error)

    def __call__(self, model: nn.Module, batch: Any) -> Tensor | None:
        """Return the loss of a batch."""
        return self._loss(model, batch)

    def mends(self, error: Exception) -> bool:
        """Continue without the compiler after this error -> whether it may have been the compiler's."""
        if self._loss is self._plain:
            return False
        self._loss = self._plain
        self._note(error)
        return True

    def _note(self, error: Exception) -> None:
        said = next(iter(str(error).splitlines()), "")
        self._notes.append(
            f"numerics.compile: the model is not compiled from here on, {type(error).__name__}: {said[:160]}; "
            "leave the key out, or fix the error"
        )


class Within:
    """A loss that is computed in a context."""

    def __init__(self, loss: Loss, context: Context) -> None:
        self._loss, self._context = loss, context

    def __call__(self, model: nn.Module, batch: Any) -> Tensor | None:
        """Return the loss of a batch."""
        with self._context():
            return self._loss(model, batch)


def no_mending(_error: Exception) -> bool:
    """Return False: no compiler is involved."""
    return False
