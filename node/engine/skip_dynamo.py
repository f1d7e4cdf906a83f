"""Import torch's optimisers without its compiler, by a stand-in for `torch._dynamo` until something compiles, and without its profiling.

Every optimiser of torch imports `torch._dynamo` in its constructor, to tell the tracer which functions to leave alone. Nothing here is
traced unless a model is compiled, and the import costs more than a second of processor time and 70 MB in every engine. The stand-in
answers the two functions that `torch.optim` calls; code that uses anything else, as `torch.compile` does, gets the real module.
"""

import importlib
import sys
from collections.abc import Callable
from inspect import unwrap
from types import ModuleType
from typing import Any

import torch

TRACER = "torch._dynamo"


class _StandIn(ModuleType):
    @staticmethod
    def disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        return function

    @staticmethod
    def graph_break() -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":  # `inspect` reads it from every module, also during an import
            raise AttributeError(name)
        if sys.modules.get(TRACER) is self:  # not yet replaced
            del sys.modules[TRACER]
            delattr(torch, "_dynamo")
        return getattr(importlib.import_module(TRACER), name)


def without_tracer() -> None:
    """Install the stand-in, unless `torch._dynamo` is already imported."""
    if TRACER not in sys.modules:
        sys.modules[TRACER] = _StandIn(TRACER)
        setattr(torch, "_dynamo", sys.modules[TRACER])  # noqa: B010 — a name of torch's own


def bare(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """Return the step of one of torch's own optimisers less their profiling and hooks, which take as long as the step of a small model.

    For any other optimiser it is the step itself.
    """
    if not type(optimizer).__module__.startswith("torch.optim."):
        return optimizer.step
    within = unwrap(type(optimizer).step)

    def step() -> None:
        with torch.no_grad():
            within(optimizer)

    return step
