"""A copy of a model at one moment, measured and exported while training continues.

No module is copied, as copies are often impossible (a module that keeps an activation of its last forward pass, or a lock), wrong (a hook
that is a closure over the original) or too large (a quantised base). The model in training itself computes, with the values of that moment
lent to it: those of its trainable parameters and its buffers, and what its modules keep in plain attributes. Frozen parameters are shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from starling.node.engine import model_file
from starling.node.engine.quantised import packed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Values:
    """Tensors that a model computes with, by parameter and by module."""

    parameters: tuple[tuple[nn.Parameter, Tensor], ...]
    buffers: tuple[tuple[nn.Module, dict[str, Tensor]], ...]
    attributes: tuple[tuple[nn.Module, dict[str, Any]], ...]

    @classmethod
    def of(cls, model: nn.Module, parameters: Iterable[nn.Parameter]) -> _Values:
        """Return the tensors that the model computes with now, not copied."""
        modules = tuple(model.modules())
        buffers = tuple((each, dict(each.named_buffers(recurse=False, remove_duplicate=False))) for each in modules)
        return cls(tuple((each, each.data) for each in parameters), buffers, tuple((each, dict(vars(each))) for each in modules))

    def copied(self) -> _Values:
        """Return a copy; a tensor that two modules share is still shared."""
        with torch.no_grad():
            copies = {id(each): each.clone() for _, held in self.buffers for each in held.values()}
            parameters = tuple((parameter, value.clone()) for parameter, value in self.parameters)
        buffers = tuple((module, {name: copies[id(each)] for name, each in held.items()}) for module, held in self.buffers)
        return _Values(parameters, buffers, self.attributes)

    def lend(self) -> None:
        """Let the modules compute with these values."""
        for parameter, value in self.parameters:
            parameter.data = value
        for module, attributes in self.attributes:
            held = vars(module)
            for name in held.keys() - attributes.keys():
                del held[name]
            held.update(attributes)
        for module, buffers in self.buffers:
            for name, buffer in buffers.items():
                setattr(module, name, buffer)


def followers(model: nn.Module) -> list[nn.Parameter]:
    """Return frozen parameters that may belong to a teacher that follows the model: plain floats, no more of them than are trained."""
    frozen = [each for each in model.parameters() if not each.requires_grad and each.is_floating_point() and not packed(each)]
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    return frozen if sum(each.numel() for each in frozen) <= trained else []


class MeasuredModel:
    """The current values of `model`, which may be trained on afterwards.

    Args:
        model: whose modules compute.
        also: frozen parameters whose values change, as those of a teacher that follows the model.
    """

    def __init__(self, model: nn.Module, also: Iterable[nn.Parameter] = ()) -> None:
        self._model = model
        self._parameters = tuple(dict.fromkeys((*(each for each in model.parameters() if each.requires_grad), *also)))
        self._values = _Values.of(model, self._parameters).copied()

    @contextmanager
    def lent(self) -> Iterator[nn.Module]:
        """Yield the model with its values of that moment, whose changes are stored; afterwards it is as it was."""
        own = _Values.of(self._model, self._parameters)
        self._values.lend()
        try:
            yield self._model
        finally:
            self._values = _Values.of(self._model, self._parameters)
            own.lend()

    def entries(self) -> dict[str, Tensor]:
        """Return the contents of a file of the model (`starling.node.engine.model_file`); not copied."""
        with self.lent() as model:
            return model_file.entries(model)

    def facts(self) -> Mapping[str, str]:
        """Return the facts of such a file."""
        return model_file.facts(self._model)

    def slices(self, work: Iterator[T]) -> Iterator[T]:
        """Yield what `work` yields, computing each part with these values; the model may be trained in between."""
        while True:
            with self.lent():
                parts = list(islice(work, 1))
            if not parts:
                return
            yield parts[0]
