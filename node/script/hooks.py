"""Hooks around the steps of a user's optimisers: gradients are corrected before each, and local steps are counted.

    optimizer.step()           pre-hook: correct; the step; post-hook: note that it was done, and at which rates
    optimizer.step(closure)    pre-hook: hand on a closure that evaluates the user's and then corrects
    super().step()             the hooks of a step within a step of the same optimiser do nothing
    a step that raises         no post-hook runs, and nothing is counted; the next step starts anew
    a fused optimiser under    the gradients are `grad_scale` times too long; with `found_inf` the step changes nothing, so it is
    a GradScaler               neither corrected nor counted
    no gradient at all         not counted

Hooks hold their owner weakly, take no lock and draw no random numbers.
"""

import math
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from starling.gossip.errors import ConfigError
from starling.node.script.correction import Correction, Nowhere
from starling.node.script.gradients import Gradients
from starling.node.script.optimizers import has_hooks, innermost, rate_of, within_another
from starling.node.script.parameters import Parameters
from starling.node.script.processes import Joined

WARNED = 3  # local steps in a row without a gradient, after which a warning is given
REFUSED = 100  # local steps without a gradient, or calls of `took_step` without a hook, in a row, after which it is an error
_OPEN: "weakref.WeakKeyDictionary[Optimizer, weakref.ref[Hooks]]" = weakref.WeakKeyDictionary()


class Hooks:
    """Corrects the gradients of `parameters` before each step of `optimizers`, and notes what the steps did.

    Older hooks over one of the optimisers are closed. The correction may change its `active` between steps.

    Args:
        optimizers: the innermost ones (`starling.node.script.optimizers.unwrapped`).
        parameters: of these optimisers.
        correction: what is done to gradients.

    Attributes:
        closed: nothing is corrected or counted any more.

    Raises ConfigError: an optimiser evaluates closures several times a step, and the correction is not `Nowhere`.
    """

    def __init__(self, optimizers: Sequence[Optimizer], parameters: Parameters, correction: Correction) -> None:
        self._corrects = not isinstance(correction, Nowhere)
        for each in optimizers:
            if self._corrects and any("LBFGS" in kind.__name__ for kind in type(each).__mro__):
                raise _evaluated_again(each)
        self._process, self._optimizers, self._correction = Joined(), tuple(optimizers), correction
        self._parameters, self._gradients = parameters, Gradients(parameters)
        self._open = dict[int, bool]()  # optimiser, from pre-hook to post-hook -> whether it had a gradient
        self._by_hand, self._looked_at = set[int](), set[int]()
        self._rates = dict[int, list[tuple[float, Sequence[Tensor]]]]()  # optimiser -> (rate, parameters) of each group in its last step
        # whether since the last `took_step` a hook ran, parameters were stepped, or no gradient was found
        self._ran = self._moved = self._empty = False
        self._idle = self._unseen = 0
        self.closed = False
        before, after = _weakly(weakref.ref(self))
        handles: list[RemovableHandle] = []
        for each in optimizers:
            older = _OPEN.get(each, lambda: None)()
            if older is not None:
                older.close()
            _OPEN[each] = weakref.ref(self)
            if has_hooks(each):
                handles += [each.register_step_pre_hook(before), each.register_step_post_hook(after)]
        self._remove = weakref.finalize(self, _remove, handles)
        self._remove.atexit = False

    def took_step(self) -> bool:
        """Return whether a local step was done since the last call: one or several of the optimisers moved their parameters.

        Raises ConfigError: in a fork; when 100 calls in a row saw steps without a gradient, or no step; at the third of them without a
        gradient if a parameter is not the model's any more, otherwise it warns.
        """
        self._process.refuse_forks()
        if self.closed:
            raise ConfigError("this Swarm is closed, or another one took over its optimizer: call step() of that one, or leave the loop")
        ran, moved, empty = self._ran, self._moved, self._empty
        self._ran = self._moved = self._empty = False
        self._unseen = 0 if ran else self._unseen + 1
        if moved:
            self._idle = 0
            self._correction.stepped()
            return True
        self._idle += empty
        if empty and self._idle == WARNED:
            self._parameters.check_same()
            text = f"optimizer.step() ran {WARNED} times without a gradient in any of its parameters; such steps are not counted"
            warnings.warn(text, stacklevel=3)
        if self._idle >= REFUSED:
            raise ConfigError(
                f"optimizer.step() ran {REFUSED} times without a gradient in any of its parameters: does it hold the model that is trained?"
            )
        if self._unseen >= REFUSED:
            raise ConfigError(
                f"swarm.step() was called {REFUSED} times (accumulation and skipped steps are fewer) and optimizer.step() never seen: pass "
                "the optimizer that steps (its class has no hooks: call swarm.correct() and swarm.corrected())"
            )
        return False

    @property
    def rate(self) -> float:
        """Return the learning rate of the last step of each optimiser, as the step used it; NaN before the first, or if there is none.

        Where groups or optimisers differ it is the mean over the coordinates of the vector.
        """
        groups = [each for groups in self._rates.values() for each in groups]
        counted = [(rate, self._gradients.coordinates(members)) for rate, members in groups]
        rates = [rate for rate, count in counted if count]
        if not rates or min(rates) == max(rates):
            return rates[0] if rates else math.nan
        return sum(rate * count for rate, count in counted if count) / sum(count for _, count in counted)

    def correct(self, optimizer: object = None) -> None:
        """Correct gradients before a step, for optimisers without hooks. A scaler must have unscaled the gradients.

        Args:
            optimizer: the one that is about to step, perhaps wrapped; None: all.

        Raises ConfigError: sparse gradients, a fork, or another optimiser than those given to Swarm.
        """
        for each in self._chosen(optimizer):
            self._by_hand.discard(id(each))
            self.before(each, (each,), {})
            self._by_hand.add(id(each))  # hooks that still run do nothing until `corrected`

    def corrected(self, optimizer: object = None) -> None:
        """Note that the step after `correct` is done; arguments and errors as there."""
        for each in self._chosen(optimizer):
            self._by_hand.discard(id(each))
            self.after(each)

    def close(self) -> None:
        """Remove the hooks; may be called again."""
        self.closed = True
        self._remove()

    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Handle the beginning of a step -> arguments to use instead, or None. Called by the hooks."""
        if id(optimizer) in self._by_hand or (id(optimizer) in self._open and within_another(optimizer)):
            return None
        self._process.refuse_forks()
        self._ran, self._open[id(optimizer)] = True, False
        if (closure := kwargs.get("closure")) is not None:
            return args, {**kwargs, "closure": self._wrapped(optimizer, closure)}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._wrapped(optimizer, args[1]), *args[2:]), kwargs
        self._correct(optimizer)
        return None

    def after(self, optimizer: Optimizer) -> None:
        """Handle the end of a step. Called by the hooks."""
        if id(optimizer) in self._by_hand or (id(optimizer) in self._open and within_another(optimizer)):
            return
        if self._open.pop(id(optimizer), False):
            self._moved = True
            self._rates[id(optimizer)] = [(rate_of(group), group["params"]) for group in optimizer.param_groups]

    def _wrapped(self, optimizer: Optimizer, closure: Callable[..., Any]) -> Callable[..., Any]:
        """Return a closure that corrects the gradients after it ran."""
        calls = 0

        def corrected(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > 1 and self._corrects:
                raise _evaluated_again(optimizer)
            loss = closure(*args, **kwargs)
            self._correct(optimizer)
            return loss

        return corrected

    def _correct(self, optimizer: Optimizer) -> None:
        """Correct the gradients of an optimiser, if there are any and its step will not be skipped."""
        if bool(getattr(optimizer, "found_inf", None)):  # of a GradScaler
            return
        if not self._gradients.exist(optimizer):
            self._empty = True
            return
        self._parameters.note_gradients(each for group in optimizer.param_groups for each in group["params"])
        self._open[id(optimizer)] = True
        active = self._correction.active
        if active or id(optimizer) not in self._looked_at:
            self._gradients.refuse_sparse(optimizer)
            self._looked_at.add(id(optimizer))
        if active:
            scale = getattr(optimizer, "grad_scale", None)
            self._gradients.correct(optimizer, self._correction, 1.0 if scale is None else float(scale))

    def _chosen(self, optimizer: object) -> Sequence[Optimizer]:
        if optimizer is None:
            return self._optimizers
        inner = innermost(optimizer)
        if not any(inner is each for each in self._optimizers):
            raise ConfigError(f"optimizer: {type(inner).__name__} is none of those given to Swarm")
        return (inner,)


Before = Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]] | None]
After = Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]


def _weakly(owner: "weakref.ref[Hooks]") -> tuple[Before, After]:
    """Return hooks that do nothing once their owner is deleted. A compiler does not trace them."""

    def before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        hooks = owner()
        return None if hooks is None else hooks.before(optimizer, args, kwargs)

    def after(optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        hooks = owner()
        if hooks is not None:
            hooks.after(optimizer)

    return torch.compiler.disable(before), torch.compiler.disable(after)  # type: ignore[no-untyped-call]  # torch's


def _remove(handles: Sequence[RemovableHandle]) -> None:
    for each in handles:
        each.remove()


def _evaluated_again(optimizer: Optimizer) -> ConfigError:
    return ConfigError(
        f"{type(optimizer).__name__} evaluates its closure more than once a step: a correction has no place in it; use a mix without "
        "corrections or another optimiser"
    )
