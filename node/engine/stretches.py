"""Step one parameter in consecutive parts, which bounds the memory of a step. Its coordinates are independent.

Shapes: n numbers of a parameter.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Generator, Tensor, nn

from starling.node.engine.moments import NAMES, SCALES, MomentFormat, Unchanged

STRETCH = 1 << 18
"""Coordinates stepped at a time."""
Step = Callable[[], object]


class Stretches:
    """Steps in consecutive parts of a vector of `dtype`; `kept` says how moments are stored between steps, if not unchanged."""

    def __init__(self, kept: MomentFormat | None, dtype: torch.dtype) -> None:
        self._plain = Unchanged(dtype)
        self._kept = dict.fromkeys(NAMES, kept or self._plain)

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        step: Step,
        parameter: nn.Parameter,
        value: Tensor,
        gradient: Tensor,
        chance: Generator | None,
    ) -> None:
        """Change value (n,) in place along a gradient (n,), by a step of the optimiser of its parameter.

        Numbers that the state has once for all begin anew in each stretch; `chance` rounds moments.
        """
        before: dict[str, Any] = dict(optimizer.state.get(parameter, {}))
        after: dict[str, Any] = {}
        for start in range(0, value.numel(), STRETCH):
            part = slice(start, min(start + STRETCH, value.numel()))
            parameter.data, parameter.grad = value[part], gradient[part]
            optimizer.state[parameter] = self._opened(before, part, value)
            step()
            for name, each in optimizer.state[parameter].items():
                if _spread(each, value[part]):
                    self._storage(after, before, name, value).write(after, name, start, each, chance)
                else:
                    after[name] = each
        parameter.grad, parameter.data = None, value
        optimizer.state[parameter] = after

    def _opened(self, state: Mapping[str, Any], part: slice, value: Tensor) -> dict[str, Any]:
        """Return the state of a part: views, float32 copies of moments stored otherwise, and copies of tensors with another shape."""
        return {
            name: self._form(name).read(state, name, part.start, part.stop) if _spread(each, value) else deepcopy(each)
            for name, each in state.items()
            if not name.endswith(SCALES)
        }

    def _form(self, name: str) -> MomentFormat:
        """Return how a tensor of the state is stored."""
        return self._kept.get(name, self._plain)

    def _storage(self, after: dict[str, Any], before: Mapping[str, Any], name: str, value: Tensor) -> MomentFormat:
        """Make tensors in `after` for a state of the whole parameter `value` (n,) -> how they are written."""
        kept = self._form(name)
        for tensor, (count, dtype) in kept.forms(name, value.numel()).items():
            if tensor not in after:
                after[tensor] = before.get(tensor, value.new_empty(count, dtype=dtype))
        return kept


def _spread(each: Any, value: Tensor) -> bool:
    """Tell if a part of an optimiser's state has a number for each of value (n,)."""
    return isinstance(each, Tensor) and each.shape == value.shape
