"""The gradients of an optimiser's parameters, as parts of one flat vector.

Shapes: d parameters.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from starling.gossip.errors import ConfigError
from starling.gossip.vector import real
from starling.node.script.correction import Correction
from starling.node.script.modes import quiet
from starling.node.script.parameters import Parameters


class Gradients:
    """Flat access to the gradients of `parameters`."""

    def __init__(self, parameters: Parameters) -> None:
        self._cut, self._layout = parameters.cut, parameters.layout
        self._parameters = list(parameters.named.values())
        self._numbers = {id(each): number for number, each in enumerate(self._parameters)}
        self._flat: Tensor | None = None  # (d,), allocated when it is first needed
        self._views: list[Tensor] = []

    def exist(self, optimizer: Optimizer) -> bool:
        """Return whether any parameter of an optimiser has a gradient."""
        return any(each.grad is not None and id(each) in self._numbers for each in _members(optimizer))

    def coordinates(self, members: Iterable[Tensor]) -> int:
        """Return how many of the d coordinates these parameters have."""
        begins = self._layout.offsets
        numbers = {self._numbers[id(each)] for each in members if id(each) in self._numbers}
        return sum(begins[number + 1] - begins[number] for number in numbers)

    def refuse_sparse(self, optimizer: Optimizer) -> None:
        """Raise ConfigError: an optimiser has a sparse gradient."""
        for number in self._of(optimizer):
            gradient = self._parameters[number].grad
            if gradient is not None and gradient.layout is not torch.strided:
                module = self._layout.names[number]
                raise ConfigError(f"{module} has sparse gradients: build the embedding with sparse=False")

    def correct(self, optimizer: Optimizer, correction: Correction, scale: float) -> None:
        """Correct in place the gradients of an optimiser, which are scaled by `scale`; missing ones stay missing.

        Parameters of the optimiser that lie side by side in the vector are corrected as one stretch.
        """
        own = self._of(optimizer)
        present = [number for number in own if self._parameters[number].grad is not None]
        with quiet():
            flat, views = self._kept()
            found = [real(gradient) for number in present if (gradient := self._parameters[number].grad) is not None]
            torch._foreach_copy_([views[number] for number in present], found)
            if len(present) < len(own):
                torch._foreach_zero_([views[number] for number in own if self._parameters[number].grad is None])
            for start, stop in self._stretches(own):
                part = flat[start:stop]
                if scale != 1.0:
                    part.mul_(1.0 / scale)
                correction.take(part, start)
                if scale != 1.0:
                    part.mul_(scale)
            torch._foreach_copy_(found, [views[number] for number in present])

    def _of(self, optimizer: Optimizer) -> list[int]:
        """Return the numbers of an optimiser's parameters, in order."""
        return sorted({self._numbers[id(each)] for each in _members(optimizer) if id(each) in self._numbers})

    def _stretches(self, numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield (first, last) coordinates, last exclusive, of parameters that are consecutive in the vector."""
        begins, first = self._layout.offsets, 0
        for place, number in enumerate(numbers):
            if place + 1 == len(numbers) or numbers[place + 1] != number + 1:
                yield begins[numbers[first]], begins[number + 1]
                first = place + 1

    def _kept(self) -> tuple[Tensor, list[Tensor]]:
        if self._flat is None:
            layout = self._layout
            self._flat = torch.zeros(layout.dim, dtype=layout.dtype, device=self._parameters[0].device)
            self._views = self._cut(self._flat)
        return self._flat, self._views


def _members(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield the parameters of an optimiser's current groups: loading a state replaces them."""
    return (each for group in optimizer.param_groups for each in group["params"])
