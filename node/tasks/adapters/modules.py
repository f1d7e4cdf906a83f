"""Lightning modules as tasks, and their optimiser as keys of a manifest. No Trainer is used."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from starling.gossip.errors import ConfigError
from starling.node.catalogues import OPTIMIZERS
from starling.node.tasks import own
from starling.node.tasks.samples import rows

Make = Callable[[], nn.Module]
_BETAS = ("beta_1", "beta_2")


@dataclass(frozen=True, slots=True, eq=False)
class LightningTask(own.Made):
    """A LightningModule's training_step and validation_step; see `lightning`."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """What training_step returns."""
        with _logging(model):
            return _loss_of(model.training_step(batch, 0))  # type: ignore[operator]

    def score(self, model: nn.Module, batch: Any) -> tuple[float, float, int]:
        """(sum of the metric, sum of the loss, samples), of what validation_step logs and returns."""
        count = rows(batch)
        with _logging(model) as logged:
            returned = model.validation_step(batch, 0)  # type: ignore[operator]
        loss = None if returned is None else float(_loss_of(returned))
        if self.metric != "loss" and self.metric not in logged:
            raise ConfigError(
                f"metric: validation_step does not log {self.metric!r}, it logs {', '.join(logged) or 'nothing'}"
            )
        if loss is None:
            loss = logged.get("val_loss", logged.get("loss"))
        if loss is None:
            raise ConfigError("validation_step: must return the loss, or log it as val_loss")
        return (loss if self.metric == "loss" else logged[self.metric]) * count, loss * count, count


def lightning(
    module: Make, train: Any = None, test: Any = None, *, metric: str = "loss", higher_is_better: bool = False,
) -> LightningTask:  # fmt: skip
    """A task from a LightningModule: its training_step is the loss, its validation_step the score. No Trainer is used.

    The optimiser is the swarm's, in the manifest: `optimizer_settings` gives that of configure_optimizers.

    Args:
        module: makes a fresh LightningModule.
        train: as of `starling.task`, or a LightningDataModule; None: the module's own train_dataloader().
        test: the same; None: of a data module or of the module its val_dataloader(), else one sample in ten is held out.
        metric: what validation_step logs under that name; "loss": what it returns or logs as val_loss.
        higher_is_better: of the metric.

    Raises:
        ConfigError: the module optimises by itself (manual optimisation), or has no training_step or data.
    """
    probe: Any = module()
    if not callable(getattr(probe, "training_step", None)):
        raise ConfigError(f"module: {type(probe).__name__} has no training_step")
    if not getattr(probe, "automatic_optimization", True):
        raise ConfigError(
            "module: manual optimisation (automatic_optimization = False) cannot be used; the swarm's optimiser steps"
        )
    source: Any = probe if train is None else train
    if hasattr(source, "train_dataloader"):
        if source is not probe:
            source.prepare_data()
            source.setup("fit")
        train = source.train_dataloader()
        test = source.val_dataloader() if test is None and _overrides(source, "val_dataloader") else test
    made = own.task(model=module, train=train, test=test)
    return LightningTask(module, made.train, made.test, None, None, metric, higher_is_better)


def optimizer_settings(module: Any) -> dict[str, Any]:
    """Keys of the manifest that say what `configure_optimizers` of a LightningModule says, for `found` or `simulate(set=…)`.

    Raises ConfigError: it cannot be said: several optimisers, groups that differ, a schedule, a class or argument without a key.
    """
    made = module.configure_optimizers()
    made = made[0] if isinstance(made, list | tuple) and len(made) == 1 else made
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(
            f"configure_optimizers: returns a {type(made).__name__}, a manifest can say one optimiser without a scheduler; "
            "return that, and set optimizer.schedule"
        )
    name = next((each for each in OPTIMIZERS.built_in if OPTIMIZERS[each] is type(made)), None)
    if name is None:
        raise ConfigError(f"configure_optimizers: {type(made).__name__} is none of {', '.join(OPTIMIZERS.built_in)}")
    given, spared = _one_group(made.param_groups)
    keyed = OPTIMIZERS.keyed(name)
    taken = set(inspect.signature(keyed).parameters) if keyed is not None else set()
    if "betas" in given:
        given |= dict(zip(_BETAS, given.pop("betas"), strict=True))
    found = {"optimizer": name, "optimizer.schedule": "constant", "optimizer.lr": float(given.pop("lr"))}
    found |= {"optimizer.decay": "matrices"} if spared else {}
    for key, value in given.items():
        default = inspect.signature(type(made)).parameters.get(key)
        if key in taken:
            found[f"optimizer.{key}"] = value
        elif (
            default is not None
            and value != default.default
            and key not in {"foreach", "fused", "decoupled_weight_decay"}
        ):
            raise ConfigError(f"configure_optimizers: {key} = {value!r} of {name} has no key in a manifest")
    return found


def _one_group(groups: list[dict[str, Any]]) -> tuple[dict[str, Any], bool]:
    """Settings of all groups, and whether those with parameters of fewer than two dimensions, and no others, have no weight decay."""
    settings = [{key: value for key, value in group.items() if key != "params"} for group in groups]
    if all(each == settings[0] for each in settings):
        return settings[0], False
    decays = [each.pop("weight_decay", 0.0) for each in settings]
    fit = all(
        (decay != 0.0) == (one.ndim > 1) for decay, group in zip(decays, groups, strict=True) for one in group["params"]
    )
    if not fit or len({*decays} - {0.0}) != 1 or any(each != settings[0] for each in settings):
        raise ConfigError(
            "configure_optimizers: its groups of parameters differ; all that a manifest can say is no weight_decay for biases and norms"
        )
    return {**settings[0], "weight_decay": max(decays)}, True


@contextmanager
def _logging(model: nn.Module) -> Iterator[dict[str, float]]:
    """What the module logs, which would ask for a Trainer."""
    logged: dict[str, float] = {}

    def log(name: str, value: Any, *_: Any, **__: Any) -> None:
        logged[name] = _float(value)

    def log_dict(values: Mapping[str, Any], *_: Any, **__: Any) -> None:
        logged.update({name: _float(value) for name, value in values.items()})

    vars(model).update(log=log, log_dict=log_dict)
    try:
        yield logged
    finally:
        for name in ("log", "log_dict"):
            vars(model).pop(name, None)


def _float(value: Any) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)


def _loss_of(returned: Any) -> Tensor:
    found: Tensor = returned["loss"] if isinstance(returned, Mapping) else returned
    return found


def _overrides(given: Any, name: str) -> bool:
    """Whether a module has a method of its own: Lightning's raises where it was not written."""
    return not getattr(type(given), name).__module__.startswith(("lightning.", "pytorch_lightning."))
