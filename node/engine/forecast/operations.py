"""The operations of a loss and its gradient, recorded on fake tensors: these have shapes and no numbers, so activations take no memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from starling.gossip.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Like:
    """A tensor's properties without its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def made(self) -> Tensor:
        """Return a new tensor with these properties.

        Whole numbers are 0, which every index may be; others are near 1, so that no kernel meets subnormal ones.
        """
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        values = torch.empty(0 if 0 in self.shape else last + 1, dtype=self.dtype)
        values = values.uniform_(0.5, 1.5) if self.dtype.is_floating_point else values.zero_()
        return values.as_strided(self.shape, self.stride)

    @property
    def bytes(self) -> int:
        """Return an upper bound on its size."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(slots=True)
class Operation:
    """A call with arguments of some shapes, and how often a step does it."""

    call: Callable[..., Any]
    given: Any  # (args, kwargs), with `Like` for tensors
    count: int = 0

    @property
    def bytes(self) -> int:
        """Return the size of its arguments in bytes."""
        return sum(each.bytes for each in tree_leaves(self.given) if isinstance(each, Like))

    def arguments(self) -> Any:
        """Return args and kwargs with tensors."""
        return tree_map(_made, self.given)


class _Recorder(TorchDispatchMode):
    """Counts each operation by the shapes of its arguments."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: dict[tuple[object, str], Operation] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record an operation as torch dispatches it."""
        kwargs = kwargs or {}
        if func.namespace != "prim":  # questions about a tensor's metadata are no operations
            given = tree_map(_like, (args, kwargs))
            self.seen.setdefault((func, repr(given)), Operation(func, given)).count += 1
        return func(*args, **kwargs)


def _like(x: Any) -> Any:
    return Like(tuple(x.shape), tuple(x.stride()), x.dtype) if isinstance(x, Tensor) else x


def _made(x: Any) -> Any:
    return x.made() if isinstance(x, Like) else x


def operations(loss: Callable[[nn.Module, Any], Tensor], model: nn.Module, batch: Any) -> list[Operation]:
    """Return the operations of a loss and its gradient. `model` is left with fake parameters.

    Raises ConfigError: what the loss does depends on numbers, which there are none of.
    """
    mode, recorder = FakeTensorMode(), _Recorder()

    def fake(x: Any) -> Any:
        return mode.from_tensor(x) if isinstance(x, Tensor) else x

    for module in model.modules():
        for name, each in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            setattr(module, name, fake(each))
    try:
        with mode:
            for each in model.parameters():
                each.grad = torch.zeros_like(each)  # gradients are added to existing ones, as in an engine
        with mode, recorder:
            loss(model, tree_map(fake, batch)).backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(
            f"task.kind: its loss cannot be followed without numbers: {said[:160]}; run it for a few rounds instead, "
            "`starling status` has the time of a step"
        ) from error
    return list(recorder.seen.values())
