"""A node's part of Lightning's Trainer: it calls a module's hooks in the Trainer's order around a local step and in an evaluation.

A step: on_train_epoch_start if it is an epoch's first; then for the batch, or each part of one that is computed in parts, the hooks of its
transfer, on_train_batch_start, training_step, on_before_zero_grad (for the first part), on_before_backward and on_train_batch_end; with the
gradient of the whole batch on_after_backward and on_before_optimizer_step. The optimiser's step comes before the last part's
on_train_batch_end, and on_train_epoch_end after it. An epoch is as many steps as draw the number of the node's samples.

An evaluation is of the module with the values of one moment lent to it (`starling.node.engine.measured_model`), or of another instance; its
metric objects are empty at the beginning.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from starling.gossip.errors import ConfigError
from starling.node.tasks.adapters.hooks import TRANSFERS, own_hooks
from starling.node.tasks.adapters.logged import Logged, empty_metrics, metrics_of
from starling.node.tasks.adapters.trainer import NodeTrainer, NoOptimizer, Progress
from starling.node.tasks.api import Result
from starling.node.tasks.evaluate import evaluating, tracking
from starling.node.tasks.samples import rows

_LOSSES = ("val_loss", "loss")


class Hooks:
    """The hooks that a module, or the data module whose samples it gets, defines.

    Attributes:
        around_steps: names of those that are called in local steps alone.
        moves: whether batches are moved to the device by a hook, and so must be on the CPU before.
    """

    def __init__(self, module: nn.Module, datamodule: Any) -> None:
        """Raises ConfigError: a step takes an iterator of batches instead of one."""
        self._module = own_hooks(module)
        self._data = frozenset[str]() if datamodule is None else own_hooks(datamodule) & frozenset(TRANSFERS)
        self._indexed = {name for name in ("training_step", "validation_step") if _takes_index(module, name)}
        self.moves = not (self._module | self._data).isdisjoint(TRANSFERS[:2])

    def named(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names that the module defines."""
        return tuple(name for name in names if name in self._module)

    def call(self, module: nn.Module, name: str, *given: Any) -> Any:
        """Call a hook and return its result; None if the module does not define it."""
        if name not in self._module:
            return None
        with logging(module, name):
            return getattr(module, name)(*given)

    def step(self, module: nn.Module, name: str, batch: Any, index: int) -> Any:
        """Call training_step or validation_step, with the batch's index if it takes one, and return its result."""
        step = getattr(module, name)
        with logging(module, name):
            return step(batch, index) if name in self._indexed else step(batch)

    def transferred(self, module: Any, batch: Any) -> Any:
        """Return the batch after the hooks of its transfer to the device."""
        before, move, after = TRANSFERS
        if self.moves:
            batch = self._transfer(module, before, batch, 0)
            batch = self._transfer(module, move, batch, next(module.parameters()).device, 0)
        return self._transfer(module, after, batch, 0)

    def _transfer(self, module: Any, name: str, batch: Any, *more: Any) -> Any:
        owner = module
        if name in self._data:
            owner = trainer_of(module).datamodule
            owner.trainer = trainer_of(module)
        elif name not in self._module and not self.moves:
            return batch
        return getattr(owner, name)(batch, *more)


class Steps:
    """Runs the local steps of one instance of a module."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._active = False  # within a step
        self._started = False  # on_train_start was called
        self._in_epoch = False
        self._parts = 0  # parts of this step's batch so far
        self._pending: tuple[Any, Any, int] | None = None  # arguments of the next on_train_batch_end
        self._index = 0  # index of the next batch in the epoch
        self._left: list[tuple[Tensor, Tensor]] = []  # buffers and their values after a batch without a loss

    def begin(self, module: nn.Module, step: int, size: int) -> None:
        """Begin step number `step` with a batch of `size` samples."""
        trainer_of(module).progress.begin_step(step, size)
        self._active, self._parts = True, 0

    def loss(self, module: nn.Module, batch: Any) -> Tensor | None:
        """Return the result of training_step for a batch or a part of one; None: it skips the step."""
        if not (self._active and torch.is_grad_enabled()):
            return self._loss_aside(module, batch)
        trainer = trainer_of(module)
        self._end_batch(module)
        self._begin_epoch(module, trainer)
        batch = self._hooks.transferred(module, batch)
        trainer.logged.rows, index = rows(batch), self._index
        if self._hooks.call(module, "on_train_batch_start", batch, index) == -1:
            trainer.progress.begun = trainer.progress.step + 1 - trainer.progress.length  # the step is the epoch's last
            self._skip(module)
            return None
        self._index, self._parts = index + 1, self._parts + 1
        returned = self._hooks.step(module, "training_step", batch, index)
        loss = _loss_of(returned)
        more = returned if isinstance(returned, Mapping) else {}
        self._pending = ({} if loss is None else {**more, "loss": loss.detach()}), batch, index
        if self._parts == 1:
            self._hooks.call(module, "on_before_zero_grad", NoOptimizer())
        if loss is None:
            self._skip(module)
            return None
        self._hooks.call(module, "on_before_backward", loss)
        return loss

    def gradient_ready(self, module: nn.Module) -> None:
        """Call the hooks that see the gradient, of the whole batch, in the parameters."""
        self._hooks.call(module, "on_after_backward")
        self._hooks.call(module, "on_before_optimizer_step", NoOptimizer())

    def end(self, module: nn.Module) -> None:
        """End the step, whether it was taken, skipped or undone."""
        trainer = trainer_of(module)
        over = trainer.progress.end_step()
        for buffer, value in self._left:
            buffer.copy_(value)
        self._left = []
        self._end_batch(module)
        self._active = False
        if over:
            if self._in_epoch:
                self._hooks.call(module, "on_train_epoch_end")
                trainer.logged.reset()
            self._in_epoch = False
            trainer.progress.end_epoch()

    def _begin_epoch(self, module: nn.Module, trainer: NodeTrainer) -> None:
        if not self._started:
            self._started = True
            self._hooks.call(module, "on_fit_start")
            self._hooks.call(module, "on_train_start")
        if not self._in_epoch:
            self._in_epoch, self._index = True, trainer.progress.step - trainer.progress.begun
            self._hooks.call(module, "on_train_epoch_start")

    def _skip(self, module: nn.Module) -> None:
        """Keep the buffers of a batch without a loss: the engine resets them, as after a step that failed, which this has not."""
        self._left = [(buffer, buffer.clone()) for buffer in module.buffers()]

    def _end_batch(self, module: nn.Module) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._hooks.call(module, "on_train_batch_end", *pending)

    def _loss_aside(self, module: nn.Module, batch: Any) -> Tensor | None:
        """Return a loss outside of local steps, for a trial, a comparison of models, or statistics of normalisation: nothing is logged."""
        trainer = trainer_of(module)
        previous, trainer.logged = trainer.logged, Logged(rows=rows(batch))
        try:
            # A state that is saved for a gradient must not be written to before that is computed.
            with nullcontext() if torch.is_grad_enabled() else _unchanged(module):
                return _loss_of(self._hooks.step(module, "training_step", self._hooks.transferred(module, batch), 0))
        finally:
            trainer.logged = previous


@dataclass(slots=True)
class Validation:
    """Runs one evaluation; satisfies `starling.node.tasks.api.Meter`.

    Args:
        attach: gives a module its trainer, if it has none.
        hooks: of the module.
        metric: the name that decides; "loss": the loss.
    """

    attach: Any
    hooks: Hooks
    metric: str
    _module: nn.Module | None = None
    _logged: Logged = field(default_factory=Logged)
    _index: int = 0
    _samples: int = 0
    _returned: float = 0.0  # sum of losses that validation_step returned
    _counted: int = 0  # samples of the batches for which it returned one

    def update(self, model: nn.Module, batch: Any, samples: int) -> None:
        """Run validation_step and the hooks around it."""
        with self._validating(model):
            if self._module is None:
                self._begin(model)
            batch, index = self.hooks.transferred(model, batch), self._index
            self._index, self._samples, self._logged.rows = index + 1, self._samples + samples, samples
            self.hooks.call(model, "on_validation_batch_start", batch, index)
            returned = self.hooks.step(model, "validation_step", batch, index)
            self.hooks.call(model, "on_validation_batch_end", returned, batch, index)
        loss = returned.get("loss") if isinstance(returned, Mapping) else returned
        if isinstance(loss, float) or (isinstance(loss, Tensor) and loss.numel() == 1):
            self._returned, self._counted = self._returned + float(loss) * samples, self._counted + samples

    def compute(self) -> Result:
        """Figures of all batches. Raises ConfigError: the metric was not logged, or there is no loss."""
        if self._module is None:
            raise ConfigError("test: there are no held-out samples; a node needs at least one to evaluate its model")
        trainer = trainer_of(self._module)
        with evaluating(self._module), self._validating(self._module):
            trainer.progress.figures = self._logged.figures()  # before hooks that reset metric objects
            self.hooks.call(self._module, "on_validation_epoch_end")
            trainer.progress.figures |= self._logged.figures("on_validation_epoch_end")
            self.hooks.call(self._module, "on_validation_end")
        figures = {name: float(value) for name, value in trainer.progress.figures.items()}
        loss = self._loss(figures)
        if self.metric != "loss" and self.metric not in figures:
            logged = ", ".join(figures) or "nothing"
            raise ConfigError(f"metric: validation_step does not log {self.metric!r}, it logs {logged}")
        value = loss if self.metric == "loss" else figures[self.metric]
        figures.pop(self.metric, None)
        return Result(value, loss, self._samples, figures)

    def _begin(self, model: nn.Module) -> None:
        self._module = model
        empty_metrics(model)
        self.hooks.call(model, "on_validation_start")
        self.hooks.call(model, "on_validation_epoch_start")

    @contextmanager
    def _validating(self, model: nn.Module) -> Iterator[None]:
        self.attach(model)
        trainer = trainer_of(model)
        previous, trainer.logged, trainer.training = trainer.logged, self._logged, False
        try:
            yield
        finally:
            trainer.logged, trainer.training = previous, True

    def _loss(self, figures: Mapping[str, float]) -> float:
        if self._counted:
            return self._returned / self._counted
        named = [name for name in figures if "loss" in name]
        for name in (*_LOSSES, *named[: len(named) == 1]):
            if name in figures:
                return figures[name]
        raise ConfigError("validation_step: must return the loss, or log it as val_loss")


def attach(module: nn.Module, hooks: Hooks, progress: Progress, datamodule: Any) -> None:
    """Give a module a trainer, unless it has one."""
    if trainer_of(module) is None:
        module.trainer = NodeTrainer(progress, datamodule, Steps(hooks))  # type: ignore[assignment]


def trainer_of(module: nn.Module) -> Any:
    """Return the `NodeTrainer` of a module, which a copy of it has not; None: it has none."""
    return vars(module).get("_trainer") or vars(module).get("trainer")


@contextmanager
def logging(module: nn.Module, hook: str) -> Iterator[None]:
    """Redirect the module's logging to its trainer while a hook runs."""
    logged = trainer_of(module).logged
    logged.hook = hook
    vars(module).update(log=logged.log, log_dict=logged.log_dict)
    try:
        yield
    finally:
        for name in ("log", "log_dict"):
            del vars(module)[name]


def _loss_of(returned: Any) -> Tensor | None:
    loss = returned.get("loss") if isinstance(returned, Mapping) else returned
    if not isinstance(loss, Tensor) and returned is not None:
        given = f"a dict with {', '.join(map(str, returned))}" if isinstance(returned, Mapping) else type(returned).__name__
        raise ConfigError(
            f"training_step: must return the loss as a tensor, a dict with it as `loss`, or None to skip the step, got {given}"
        )
    return loss


def _takes_index(module: nn.Module, name: str) -> bool:
    taken = inspect.signature(getattr(module, name)).parameters
    if "dataloader_iter" in taken:
        raise ConfigError(f"module: {type(module).__name__}.{name} takes a dataloader_iter; a node gives it a batch")
    return len(taken) > 1 or any(each.kind is each.VAR_POSITIONAL for each in taken.values())


@contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Restore buffers and metric objects afterwards, except normalisation statistics, which the caller restores."""
    statistics = {id(buffer) for layer in tracking(module) for buffer in layer.buffers(recurse=False)}
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers() if id(buffer) not in statistics]
    states = [
        (metric, name, value.clone() if isinstance(value, Tensor) else list(value))
        for metric in metrics_of(module)
        for name, value in metric.metric_state.items()
    ]
    yield
    for buffer, before in buffers:
        buffer.copy_(before)
    for metric, name, state in states:
        setattr(metric, name, state)
