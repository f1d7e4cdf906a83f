"""Local steps of a task with hooks around each of them (`Stepped`)."""

from torch import Tensor, nn

from starling.gossip.binding import move
from starling.gossip.errors import ConfigError
from starling.node.engine.local.gradient_source import GradientSource
from starling.node.engine.local.local_model import LocalModel
from starling.node.engine.local.local_step import LocalStep
from starling.node.tasks.api import Stepped, Task


class NoHooks:
    """Does nothing around steps. Satisfies `Stepped`."""

    step_hooks: tuple[str, ...] = ()

    def begin_step(self, model: nn.Module, step: int, size: int) -> None: ...

    def gradient_ready(self, model: nn.Module) -> None: ...

    def end_step(self, model: nn.Module) -> None: ...


def stepped_of(task: Task) -> Stepped:
    """Return the task if it has hooks around steps, else hooks that do nothing."""
    return task if isinstance(task, Stepped) else NoHooks()


class HookedSource:
    """Shows the task each gradient, which it may change. Satisfies `GradientSource`."""

    def __init__(self, source: GradientSource, task: Stepped, module: nn.Module) -> None:
        self._source, self._task, self._module = source, task, module

    def __call__(self, step: int, round: int, into: Tensor) -> tuple[float, bool]:
        """Compute a gradient; the task sees it if the step may be taken."""
        loss, is_finite = self._source(step, round, into)
        if is_finite:
            self._task.gradient_ready(self._module)
        return loss, is_finite

    def forget(self) -> None:
        self._source.forget()


class HookedStep:
    """Calls the task's hooks around each step, of a batch of `size` samples. Satisfies `LocalStep`."""

    def __init__(self, step: LocalStep, task: Stepped, model: LocalModel, size: int) -> None:
        self._step, self._task, self._model, self._size = step, task, model, size

    @property
    def steps(self) -> int:
        return self._step.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._step.steps = steps

    @property
    def undone(self) -> int:
        return self._step.undone

    @undone.setter
    def undone(self, undone: int) -> None:
        self._step.undone = undone

    def __call__(self, round: int) -> float | None:
        """Do a step between the task's hooks."""
        binding, module = self._model.binding, self._model.module
        move(binding.before)
        self._task.begin_step(module, self.steps, self._size)
        move(binding.after_step)
        loss = self._step(round)
        move(binding.before)
        self._task.end_step(module)
        move(binding.after_step)
        return loss

    def forget(self, *, gradients: bool) -> None:
        self._step.forget(gradients=gradients)


def refuse_hooks(task: Stepped, key: str, steps: str) -> None:
    """Raise ConfigError where a task's hooks would not be called, as the `steps` that `key` selects have no place for them."""
    if task.step_hooks:
        raise ConfigError(
            f"{key}: {steps}, for which {', '.join(task.step_hooks)} of the task cannot be called; leave the key out, or remove the hooks"
        )
