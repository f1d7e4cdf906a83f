"""Handle users' optimisers: wrapped by libraries, with or without hooks, stepping within each other's steps."""

import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch.optim import Optimizer

from starling.gossip.errors import ConfigError

_STEPS = inspect.getfile(Optimizer)  # torch's file with the function around each step, which runs the hooks


def unwrapped(given: object, *, by_hand: bool = False) -> list[Optimizer]:
    """Return the innermost optimisers of one or several, each once, as Accelerate, Lightning, SAM or Lookahead wrap them.

    Args:
        given: an optimiser, or an iterable of them.
        by_hand: the user calls `correct` and `corrected` (`starling.node.script.hooks`) around each step: a class without hooks will do.

    Raises ConfigError: none is given, one is no optimiser, or has no hooks.
    """
    many: list[object] = list(given) if isinstance(given, Iterable) else [given]
    found: list[Optimizer] = []
    for each in map(innermost, many):
        kind = type(each).__name__
        if not hasattr(each, "param_groups"):
            raise ConfigError(f"optimizer: {kind} has no param_groups; give an optimizer of torch, or a list of them")
        if not by_hand and not has_hooks(each):
            raise ConfigError(
                f"optimizer: {kind} has no hooks: make the Swarm with by_hand=True, and call swarm.correct() before each step and "
                "swarm.corrected() after it"
            )
        if not any(each is one for one in found):
            found.append(each)
    if not found:
        raise ConfigError("optimizer: an empty list; give the optimizers that step the model")
    return found


def innermost(optimizer: Any) -> Any:
    """Return the innermost optimiser that an optimiser wraps; itself, if it wraps none."""
    seen: list[Any] = []
    while not any(optimizer is each for each in seen):
        seen.append(optimizer)
        inside = (getattr(optimizer, name, None) for name in ("optimizer", "base_optimizer"))
        optimizer = next((each for each in inside if hasattr(each, "param_groups")), optimizer)
    return optimizer


def has_hooks(optimizer: Optimizer) -> bool:
    """Return whether hooks can be registered around an optimiser's steps."""
    try:
        optimizer.register_step_pre_hook(lambda *_: None).remove()
    except AttributeError:  # its class does not call Optimizer.__init__, or is not torch's
        return False
    return True


def within_another(optimizer: Optimizer) -> bool:
    """Return whether a step of the same optimiser called the step whose hook runs: then two of torch's frames are around it.

    A counter would be wrong after a step that raised, and so would be a frame kept: it would keep all that its callers hold.
    """
    frame, found = inspect.currentframe(), 0
    while frame is not None and found < 2:
        if frame.f_code.co_filename == _STEPS:
            found += frame.f_locals.get("self", optimizer) is optimizer  # absent in a frame that a compiler made
        frame = frame.f_back
    return found == 2


def rate_of(group: Mapping[str, Any]) -> float:
    """Return the current learning rate of a parameter group; NaN if it has none."""
    rate = group.get("lr")
    return math.nan if rate is None else float(rate)
