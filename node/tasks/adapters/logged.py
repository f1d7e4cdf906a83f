"""Collect what a LightningModule logs by `self.log`, reduced as Lightning reduces it.

A number that is logged for an epoch becomes the mean over its batches, weighted by their size, or their sum, least or greatest; a metric
object is computed once, of all batches, and then reset.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from starling.gossip.errors import ConfigError

_EVERY_STEP = frozenset(
    {
        "training_step",
        "on_train_batch_start",
        "on_train_batch_end",
        "on_before_zero_grad",
        "on_before_backward",
        "on_after_backward",
        "on_before_optimizer_step",
    }
)
"""Hooks in which self.log logs for the step by default; in all others it logs for the epoch."""
_SILENT = frozenset({"on_fit_start", "on_validation_end"})
_REDUCED: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"min": torch.minimum, "max": torch.maximum, "sum": torch.add}
_NAMES = {torch.mean: "mean", torch.sum: "sum", sum: "sum", torch.min: "min", min: "min", torch.max: "max", max: "max"}


@dataclass(slots=True)
class _Entry:
    """One name, logged in one hook."""

    on_step: bool
    on_epoch: bool
    reduction: str
    last: Tensor | None = None
    metric: Any = None
    total: Tensor | None = None
    weight: float = 0.0

    def add(self, value: Tensor, weight: float) -> None:
        """Add a batch's number."""
        self.last = value
        if not self.on_epoch:
            return
        if self.reduction == "mean":
            value, self.weight = value * weight, self.weight + weight
        reduced = _REDUCED.get(self.reduction, torch.add)
        self.total = value if self.total is None else reduced(self.total, value)

    def value(self, name: str) -> Tensor | None:
        """Return the figure of all batches so far, or the last one's if it was not logged for the epoch; None: there was none."""
        if self.metric is not None:
            return _number(f"the metric {name!r}", self.metric.compute())
        if self.total is None:
            return self.last
        return self.total / self.weight if self.weight else self.total


@dataclass(slots=True)
class Logged:
    """Figures that the hooks of one module log in an epoch.

    Attributes:
        hook: the running hook.
        rows: samples of its batch.
    """

    hook: str = ""
    rows: int = 1
    _entries: dict[tuple[str, str], _Entry] = field(default_factory=dict)

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Satisfies `LightningModule.log`. Raises ConfigError: the value is no number, or cannot be reduced so."""
        if self.hook in _SILENT:
            raise ConfigError(f"{self.hook}: self.log({name!r}) has no place here, as in Lightning; call it in another hook")
        steps = self.hook in _EVERY_STEP
        reduction = reduce_fx if isinstance(reduce_fx, str) else _NAMES.get(reduce_fx, "")
        if reduction not in {"mean", *_REDUCED}:
            raise ConfigError(f"{self.hook}: self.log({name!r}, reduce_fx=…) must be mean, sum, min or max, got {reduce_fx!r:.60}")
        made = _Entry(steps if on_step is None else on_step, (not steps) if on_epoch is None else on_epoch, reduction)
        entry = self._entries.setdefault((self.hook, name), made)
        if (entry.on_step, entry.on_epoch, entry.reduction) != (made.on_step, made.on_epoch, made.reduction):
            raise ConfigError(f"{self.hook}: self.log({name!r}) is called twice with other arguments")
        if is_metric(value):
            entry.metric = value
        else:
            entry.add(_number(f"{self.hook}: self.log({name!r})", value), self.rows if batch_size is None else batch_size)

    def log_dict(self, dictionary: Any, *args: Any, **more: Any) -> None:
        """Satisfies `LightningModule.log_dict`."""
        for name, value in _items(dictionary):
            self.log(name, value, *args, **more)

    def figures(self, hook: str = "", *, steps: bool = False) -> dict[str, Tensor]:
        """Return what was logged for the epoch, and for single steps if `steps`, by name; of one hook or of all."""
        chosen = [(name, entry) for (each, name), entry in self._entries.items() if hook in {"", each} and (steps or entry.on_epoch)]
        values = {name: entry.value(name) for name, entry in chosen}
        return {name: value for name, value in values.items() if value is not None}

    def reset(self) -> None:
        """Start a new epoch; logged metric objects are reset."""
        for entry in self._entries.values():
            if entry.metric is not None:
                entry.metric.reset()
        self._entries.clear()


def is_metric(value: Any) -> bool:
    """Return whether this is a metric of torchmetrics, or a collection of them."""
    return isinstance(value, _kinds())


def metrics_of(module: nn.Module) -> Iterator[Any]:
    """Yields the single metrics in a module, those of collections too."""
    return (each for each in module.modules() if isinstance(each, _kinds()[:1]))


def empty_metrics(module: nn.Module) -> None:
    """Reset a module's metrics for an evaluation by this process alone. Lists that training has filled are left to it."""
    for metric in metrics_of(module):
        metric.sync_on_compute = False
        for name, state in metric.metric_state.items():
            if isinstance(state, list):
                setattr(metric, name, [])
    for each in module.modules():
        if is_metric(each):
            each.reset()  # type: ignore[operator]


def _kinds() -> tuple[type, ...]:
    """Classes of metrics and of collections; none where nobody has imported torchmetrics."""
    library: Any = sys.modules.get("torchmetrics")
    return () if library is None else (library.Metric, library.MetricCollection)


def _items(given: Any) -> Any:
    """Names and values of a dict, or of a MetricCollection, whose metrics may share their state."""
    taken = inspect.signature(given.items).parameters if is_metric(given) else {}
    return given.items(**{name: False for name in ("keep_base", "copy_state") if name in taken})


def _number(where: str, value: Any) -> Tensor:
    if isinstance(value, Tensor) and value.numel() == 1:
        number = value.detach().clone().squeeze()
        return number if number.is_floating_point() else number.to(torch.float32)
    if isinstance(value, int | float):
        return torch.tensor(float(value))
    form = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise ConfigError(f"{where}: must be one number or a metric object, got {form}")
