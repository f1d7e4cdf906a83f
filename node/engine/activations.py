"""Activation checkpointing: what a model's blocks compute in a forward pass is not stored, but recomputed in the backward pass.

Blocks are the members of a list of modules (`nn.ModuleList`, or an `nn.Sequential` of modules with parts of their own), as transformers and
residual networks have them; an `nn.Sequential` of n plain layers is cut into about √n pieces. Models of `transformers` bring their own way,
which is used. A block draws the same chance again (dropout), and its buffers, such as running means, change once.

The first step imports `torch._dynamo`, whose settings torch's `checkpoint` reads: some 70 MB that are worth it for models, not for toys.

Source: Chen, Xu, Zhang and Guestrin 2016, Training deep nets with sublinear memory cost (arXiv:1604.06174).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from starling.gossip.errors import ConfigError

KEY = "numerics.activation_checkpointing"


class Checkpointed:
    """Recomputes the activations of a model's blocks. Raises ConfigError: it has none.

    Between forward passes the model is as it was, so that copies of it, and evaluations, know nothing of this.
    """

    def __init__(self, model: nn.Module) -> None:
        self._wrappers: list[tuple[nn.Module, Callable[..., Any]]] = []
        self._own = _enabled(model)
        if not self._own:
            self._wrappers = list(_wrappers(model))
        if not self._own and not self._wrappers:
            raise ConfigError(
                f"{KEY}: {type(model).__name__} has no blocks: an nn.ModuleList of modules with parts of their own, or an nn.Sequential; "
                "leave it out; if memory is short, try `--set numerics.micro_batch=1`"
            )

    @property
    def blocks(self) -> int:
        """Return the number of blocks, 0 for a model that checkpoints itself."""
        return len(self._wrappers)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Let forward passes in this block store the inputs and outputs of blocks, and nothing within them."""
        for module, wrapper in self._wrappers:
            module.forward = wrapper  # the instance's attribute takes precedence over the class's
        try:
            yield
        finally:
            for module, _ in self._wrappers:
                del module.forward


def _enabled(model: nn.Module) -> bool:
    """Tell if the model, or a part of it, is one of `transformers`, which checkpoints itself while it trains."""
    for module in model.modules():
        if getattr(module, "supports_gradient_checkpointing", False):
            word = "activation" if hasattr(module, "activation_checkpointing_enable") else "gradient"  # before transformers 5.24
            enable: Any = getattr(module, f"{word}_checkpointing_enable")
            enable(**{f"{word}_checkpointing_kwargs": {"use_reentrant": False}})
            return True
    return False


def _wrappers(module: nn.Module) -> Iterator[tuple[nn.Module, Callable[..., Any]]]:
    """Yield the outermost blocks, each with the forward that replaces its own."""
    children = list(module.children())
    nested = [child for child in children if any(True for _ in child.children())]
    listed = isinstance(module, nn.ModuleList | nn.Sequential) and len(children) > 1
    if isinstance(module, nn.Sequential) and listed and not nested:
        yield module, _in_pieces(children)
        return
    for child in nested:
        if listed and not isinstance(child, nn.ModuleList):  # nn.ModuleList has no forward
            yield child, _again(child.forward, [child])
        else:
            yield from _wrappers(child)


def _again(forward: Callable[..., Any], parts: Sequence[nn.Module]) -> Callable[..., Any]:
    def wrapper(*args: Any, **named: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), _same_buffers(parts)), **named)

    return wrapper


def _in_pieces(layers: Sequence[nn.Module]) -> Callable[[Any], Any]:
    size = math.ceil(math.sqrt(len(layers)))
    pieces = [layers[begin : begin + size] for begin in range(0, len(layers), size)]
    wrappers = [_again(nn.Sequential(*piece).forward, piece) for piece in pieces]

    def forward(x: Any) -> Any:
        for wrapper in wrappers:
            x = wrapper(x)
        return x

    return forward


def _same_buffers(parts: Sequence[nn.Module]) -> AbstractContextManager[None]:
    """Return a context in which changes of buffers are made to copies, which are then discarded."""

    @contextmanager
    def context() -> Iterator[None]:
        kept = [
            (module, name, buffer) for part in parts for module in part.modules() for name, buffer in module.named_buffers(recurse=False)
        ]
        for module, name, buffer in kept:
            module._buffers[name] = buffer.clone()  # noqa: SLF001 — assigning to the attribute would register it anew
        try:
            yield
        finally:
            for module, name, buffer in kept:
                module._buffers[name] = buffer  # noqa: SLF001

    return context()
