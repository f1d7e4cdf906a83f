"""One parameter stepped a stretch at a time, which bounds the memory of a step. Its coordinates are independent.

Shapes: n numbers of a parameter.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn

from starling.node.engine.moments import NAMES, SCALES, Kept

STRETCH = 1 << 18
"""Coordinates stepped at a time."""
Step = Callable[[], object]


class Stretches:
    """Steps in stretches; `kept` says how moments are stored between steps, if not in float32."""

    def __init__(self, kept: Kept | None) -> None:
        self._kept = kept

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
            optimizer.state[parameter] = self._opened(before, part, value.shape)
            step()
            for name, each in optimizer.state[parameter].items():
                self._close(after, before, name, each, part, value, chance)
        parameter.grad, parameter.data = None, value
        optimizer.state[parameter] = after

    def _opened(self, state: Mapping[str, Any], part: slice, shape: torch.Size) -> dict[str, Any]:
        """Return the state of a stretch: views, float32 copies of moments stored otherwise, and copies of what has another shape."""
        found: dict[str, Any] = {}
        for name, each in state.items():
            if self._kept is not None and name in NAMES:
                found[name] = self._kept.read(state, name, part.start, part.stop)
            elif name.endswith(SCALES):
                continue
            elif not isinstance(each, Tensor):
                found[name] = each
            else:
                found[name] = each[part] if each.shape == shape else each.clone()
        return found

    def _close(
        self, after: dict[str, Any], before: Mapping[str, Any], name: str, each: Any, part: slice, value: Tensor, chance: Generator | None
    ) -> None:
        """Keep one tensor of a stretch's state in that of the whole parameter `value` (n,)."""
        if not isinstance(each, Tensor) or each.shape != value[part].shape:
            after[name] = each
        elif self._kept is not None and name in NAMES:
            for tensor, (count, dtype) in self._kept.forms(name, value.numel()).items():
                if tensor not in after:
                    after[tensor] = before.get(tensor, value.new_empty(count, dtype=dtype))
            self._kept.write(after, name, part.start, each, chance)
        else:
            if name not in after:
                after[name] = before.get(name, each.new_empty(value.shape))
            if after[name][part].data_ptr() != each.data_ptr():
                after[name][part] = each
