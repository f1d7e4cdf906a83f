"""Substitute for Lightning's Trainer on a node: it has the attributes that a node can know, and no others."""

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from starling.node.tasks.adapters.logged import Logged


@dataclass(slots=True)
class Progress:
    """Progress of a node's training, shared by the trainers of all modules that its task makes.

    Attributes:
        samples: that this node trains on.
        seed: of what hooks draw outside of a loss.
        step: local steps done, which `global_step` says.
        epoch: of the next step.
        begun: steps done when that epoch began.
        length: steps of an epoch; 0 before the first.
        figures: of the last evaluation.
    """

    samples: int = 1
    seed: int = 0
    step: int = 0
    epoch: int = 0
    begun: int = 0
    length: int = 0
    figures: dict[str, Tensor] = field(default_factory=dict)

    def begin_step(self, step: int, size: int) -> None:
        """Record that a step begins after `step` others, with a batch of `size` samples; after a jump the epoch follows from the steps."""
        self.length = self.length or math.ceil(self.samples / size)
        if step != self.step or not step:
            self.epoch, into = divmod(step, self.length)
            self.step, self.begun = step, step - into

    def end_step(self) -> bool:
        """Count a step; return whether the epoch is over."""
        self.step += 1
        return self.step - self.begun >= self.length

    def end_epoch(self) -> None:
        self.epoch, self.begun = self.epoch + 1, self.step


class NodeTrainer:
    """The `self.trainer` of a module on a node. Other attributes of a Trainer raise AttributeError with their name.

    Attributes:
        datamodule: whose samples these are, or None.
        logged: what `self.log` has been given in the epoch.
        training: false while the module is evaluated.
    """

    __slots__ = ("__weakref__", "datamodule", "logged", "progress", "steps", "training")
    global_rank = local_rank = node_rank = 0
    is_global_zero = True
    logger = None
    loggers: tuple[()] = ()
    num_devices = num_nodes = world_size = 1  # sizes for this process only: the swarm's nodes are not one group
    predicting = sanity_checking = testing = False
    progress_bar_callback = None

    def __init__(self, progress: Progress, datamodule: Any, steps: Any) -> None:
        """`steps` runs the module's local steps."""
        self.datamodule, self.progress, self.steps = datamodule, progress, steps
        self.logged = Logged()
        self.training = True

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(each for each in dir(type(self)) if not each.startswith("_"))
        raise AttributeError(f"trainer.{name}: there is no Trainer on a node; its replacement has only {known}")

    def __deepcopy__(self, _memo: Any) -> None:
        """A copied module has no trainer until it is used."""

    @property
    def global_step(self) -> int:
        """Local steps done, also those that were skipped or undone."""
        return self.progress.step

    @property
    def current_epoch(self) -> int:
        """Return how often as many samples as the node has were drawn."""
        return self.progress.epoch

    @property
    def num_training_batches(self) -> int:
        """Return the local steps of an epoch."""
        return max(1, self.progress.length)

    @property
    def validating(self) -> bool:
        return not self.training

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """Figures of the last evaluation, and what has been logged in this epoch."""
        return self.progress.figures | self.logged.figures(steps=True)

    logged_metrics = callback_metrics

    @property
    def should_stop(self) -> bool:
        """Return False; setting it raises."""
        return False

    @should_stop.setter
    def should_stop(self, _stop: bool) -> None:
        raise AttributeError("trainer.should_stop: a node trains until the swarm's last round; `starling stop` ends it")

    @property
    def strategy(self) -> "OneProcess":
        return OneProcess()


class OneProcess:
    """The `self.trainer.strategy` of a module on a node: a single process."""

    __slots__ = ()

    def all_gather(self, tensor: Tensor, *_: Any, **__: Any) -> Tensor:
        """Return the tensor unchanged."""
        return tensor

    reduce = broadcast = all_gather

    def barrier(self, *_: Any, **__: Any) -> None:
        """Return at once: there is no other process."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"trainer.strategy.{name}: there is no Trainer on a node, whose optimiser is the swarm's")


class NoOptimizer:
    """Placeholder that hooks are given instead of an optimiser."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"optimizer.{name}: the swarm's optimiser works on all parameters as one vector; it is not given to hooks")
