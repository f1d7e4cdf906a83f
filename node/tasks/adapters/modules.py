"""Lightning modules as tasks, and their optimiser as keys of a manifest."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from starling.gossip.errors import ConfigError
from starling.gossip.seeds import derive
from starling.node.catalogues import OPTIMIZERS
from starling.node.tasks import own
from starling.node.tasks.adapters import loop
from starling.node.tasks.adapters.hooks import AROUND_STEPS, overrides, refuse_ignored
from starling.node.tasks.adapters.loop import Hooks, Steps, Validation
from starling.node.tasks.adapters.trainer import Progress
from starling.node.tasks.api import Data, Source
from starling.node.tasks.samples import rows

Make = Callable[[], nn.Module]
_BETAS = ("beta_1", "beta_2")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LightningTask(own.Made):
    """A LightningModule's training_step and validation_step, with the hooks around them; see `lightning`.

    Satisfies `starling.node.tasks.api.Metered` and `Stepped`.
    """

    hooks: Hooks
    datamodule: Any
    progress: Progress = field(default_factory=Progress)

    def data(self, source: Source, device: str) -> Data:
        """Return the data as `starling.task` does; on the CPU if a hook moves batches to the device."""
        data = own.Made.data(self, source, "cpu" if self.hooks.moves else device)
        self.progress.samples, self.progress.seed = data.samples, derive(source.seed, "hooks", source.shard)
        return data

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return self._steps(model).loss(model, batch)  # type: ignore[return-value] # None: the step is skipped

    def meter(self) -> Validation:
        """Return a meter that runs validation_step."""
        return Validation(self.attach, self.hooks, self.metric)

    def score(self, model: nn.Module, batch: Any) -> tuple[float, float, int]:
        """Return (sum of the metric, sum of the loss, samples), as if the batch were all held-out samples."""
        meter, count = self.meter(), rows(batch)
        meter.update(model, batch, count)
        result = meter.compute()
        return result.value * count, result.loss * count, count

    @property
    def step_hooks(self) -> tuple[str, ...]:
        """Names of the module's hooks around local steps."""
        return self.hooks.named(AROUND_STEPS)

    def begin_step(self, model: nn.Module, step: int, size: int) -> None:
        self._steps(model).begin(model, step, size)

    def gradient_ready(self, model: nn.Module) -> None:
        """Call the hooks that see the gradient."""
        with self._seeded():
            self._steps(model).gradient_ready(model)

    def end_step(self, model: nn.Module) -> None:
        """Call the hooks that come after a step."""
        with self._seeded():
            self._steps(model).end(model)

    def attach(self, model: nn.Module) -> None:
        """Give a module a trainer, unless it has one."""
        loop.attach(model, self.hooks, self.progress, self.datamodule)

    @contextmanager
    def _seeded(self) -> Iterator[None]:
        """Torch's chance is of this node's step alone, so that a resumed run draws the same; `loss` is called so anyway."""
        if not self.step_hooks:
            yield
            return
        with torch.random.fork_rng([], device_type="cuda"):
            torch.default_generator.manual_seed(derive(self.progress.seed, self.progress.step))
            yield

    def _steps(self, model: nn.Module) -> Steps:
        self.attach(model)
        return loop.trainer_of(model).steps  # type: ignore[no-any-return]


def lightning(module: Make, train: Any = None, test: Any = None, *, metric: str = "loss", higher_is_better: bool = False) -> LightningTask:
    """Return a task from a LightningModule: its training_step is the loss, its validation_step the score, its hooks are called around them.

    There is no Trainer: hooks that a node has no place for are refused by name. The optimiser is the swarm's, in the manifest:
    `optimizer_settings` gives that of configure_optimizers.

    Args:
        module: makes a fresh LightningModule.
        train: as of `starling.task`, or a LightningDataModule; None: the module's own train_dataloader().
        test: the same; None: of a data module or of the module its val_dataloader(), else one sample in ten is held out.
        metric: what is logged under that name in an evaluation; "loss": what validation_step returns or logs as val_loss.
        higher_is_better: of the metric.

    Raises:
        ConfigError: the module has a hook that no node calls, optimises by itself (manual optimisation), has no training_step,
            validation_step or data, or configure_optimizers says what a manifest cannot say.
    """
    probe: Any = module()
    for step in ("training_step", "validation_step"):
        if not overrides(probe, step):
            raise ConfigError(f"module: {type(probe).__name__} has no {step}")
    datamodule = train if hasattr(train, "train_dataloader") else None
    for given in (probe, datamodule):
        if given is not None:
            refuse_ignored(given)
    hooks, progress = Hooks(probe, datamodule), Progress()

    def set_up(made: Any) -> nn.Module:
        loop.attach(made, hooks, progress, datamodule)
        if overrides(made, "setup"):
            made.setup(stage="fit")
        if overrides(made, "configure_model"):
            made.configure_model()
        return made  # type: ignore[no-any-return]

    loop.attach(probe, hooks, progress, datamodule)
    if datamodule is not None:
        datamodule.trainer = loop.trainer_of(probe)
        datamodule.prepare_data()
    if overrides(probe, "prepare_data"):
        probe.prepare_data()
    if datamodule is not None:
        datamodule.setup("fit")
    _check_optimizer(set_up(probe))
    source: Any = probe if train is None else datamodule
    if source is not None:
        train = _loader(source, "train_dataloader")
        test = _loader(source, "val_dataloader") if test is None and overrides(source, "val_dataloader") else test
    parts = own.task(model=lambda: set_up(module()), train=train, test=test)
    taken = {each.name: getattr(parts, each.name) for each in fields(own.Made)}
    taken |= {"metric": metric, "higher_is_better": higher_is_better}
    return LightningTask(**taken, hooks=hooks, datamodule=datamodule, progress=progress)


def optimizer_settings(module: Any) -> dict[str, Any]:
    """Return manifest keys equal to a LightningModule's `configure_optimizers`, for `create` or `simulate(set=…)`.

    Where it returns None, it leaves the optimiser to the manifest, and there are no keys.

    Raises:
        ConfigError: it cannot be said: several optimisers, groups that differ, a schedule, a class or argument without a key.
    """
    made = module.configure_optimizers()
    made = made["optimizer"] if isinstance(made, Mapping) and made.keys() == {"optimizer"} else made
    made = made[0] if isinstance(made, list | tuple) and len(made) == 1 else made
    if made is None:
        return {}
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(
            f"configure_optimizers: returns a {type(made).__name__}, a manifest can express one optimiser without a scheduler; "
            "return that, and set optimizer.schedule, or return None to leave both to the manifest"
        )
    name = next((each for each in OPTIMIZERS.built_in if OPTIMIZERS[each] is type(made)), None)
    if name is None:
        raise ConfigError(f"configure_optimizers: {type(made).__name__} is none of {', '.join(OPTIMIZERS.built_in)}")
    given, spared = _one_group(made.param_groups)
    keyed = OPTIMIZERS.keyed(name)
    taken = set(inspect.signature(keyed).parameters) if keyed is not None else set()
    if "betas" in given:
        given |= dict(zip(_BETAS, given.pop("betas"), strict=True))
    keys = {"optimizer": name, "optimizer.schedule": "constant", "optimizer.lr": float(given.pop("lr"))}
    keys |= {"optimizer.decay": "matrices"} if spared else {}
    for key, value in given.items():
        default = inspect.signature(type(made)).parameters.get(key)
        if key in taken:
            keys[f"optimizer.{key}"] = value
        elif default is not None and value != default.default and key not in {"foreach", "fused", "decoupled_weight_decay"}:
            raise ConfigError(f"configure_optimizers: {key} = {value!r} of {name} has no key in a manifest")
    return keys


def _one_group(groups: list[dict[str, Any]]) -> tuple[dict[str, Any], bool]:
    """Settings of all groups, and whether those with parameters of fewer than two dimensions, and no others, have no weight decay."""
    settings = [{key: value for key, value in group.items() if key != "params"} for group in groups]
    if all(each == settings[0] for each in settings):
        return settings[0], False
    decays = [each.pop("weight_decay", 0.0) for each in settings]
    fit = all((decay != 0.0) == (one.ndim > 1) for decay, group in zip(decays, groups, strict=True) for one in group["params"])
    if not fit or len({*decays} - {0.0}) != 1 or any(each != settings[0] for each in settings):
        raise ConfigError(
            "configure_optimizers: its groups of parameters differ; a manifest can only express no weight_decay for biases and norms"
        )
    return {**settings[0], "weight_decay": max(decays)}, True


def _check_optimizer(module: Any) -> None:
    """Raise ConfigError if a module optimises manually, or in a way that a manifest cannot express."""
    if not getattr(module, "automatic_optimization", True):
        raise ConfigError("module: manual optimisation (automatic_optimization = False) cannot be used; the swarm's optimiser steps")
    if overrides(module, "configure_optimizers"):
        optimizer_settings(module)


def _loader(source: Any, name: str) -> Any:
    """Return the one loader of a module or data module. Raises ConfigError: it has none, or several."""
    if not overrides(source, name):
        raise ConfigError(f"train: {type(source).__name__} has no {name}; define it, or give train=…")
    made = getattr(source, name)()
    made = made[0] if isinstance(made, list | tuple) and len(made) == 1 else made
    if isinstance(made, list | tuple | Mapping) or type(made).__name__ == "CombinedLoader":
        raise ConfigError(
            f"{type(source).__name__}.{name}: returns several loaders ({type(made).__name__}), a node draws from one; "
            "return one of a dataset that joins them, e.g. torch.utils.data.ConcatDataset"
        )
    return made
