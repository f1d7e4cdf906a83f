"""Metrics of the models of `starling.task`, each over all held-out samples together.

Metrics are functions of all outputs and targets, or objects that are updated by batches and computed once, as those of torchmetrics. The
first decides; the others are reported with it. The loss is weighted by what it is a mean of (`starling.node.tasks.means`).
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from starling.gossip.errors import ConfigError
from starling.node.tasks import batches
from starling.node.tasks.api import Result
from starling.node.tasks.gathered import Gathered, joined
from starling.node.tasks.means import IGNORED, SAMPLES, Means, NoMean
from starling.node.tasks.samples import LABELS
from starling.node.tasks.trees import moved, tensors

HEAD = 32  # rows of a batch used to find what a loss averages over
KEPT_BYTES = 64 << 20  # bytes of stored outputs, for a loss that may have to be computed over all at once

Function = Callable[[Any, Any], Any]


class Figure(Protocol):
    """One metric of one evaluation."""

    def update(self, output: Any, target: Any) -> None:
        """Add a batch."""

    def compute(self) -> dict[str, float]:
        """Return the values by name; "" is the metric's own."""


class Updated:
    """An object with `update` and `compute`: predictions are a tensor, or the `logits` of an output, and labels those of a dict."""

    def __init__(self, name: str, metric: Any) -> None:
        self._name, self._metric = name, copy.deepcopy(metric)
        if callable(reset := getattr(self._metric, "reset", None)):
            reset()

    def update(self, output: Any, target: Any) -> None:
        """Add a batch, on the CPU."""
        self._metric.update(moved(getattr(output, "logits", output), "cpu"), moved(_labels(target), "cpu"))

    def compute(self) -> dict[str, float]:
        """Return one number, or the first and others by name."""
        return _named(self._name, self._metric.compute())


class Accuracy:
    """Share of correct answers, without samples whose label is `IGNORED`."""

    def __init__(self, right: Function) -> None:
        self._right, self._sum, self._count = right, 0.0, 0

    def update(self, output: Any, target: Any) -> None:
        labels = _labels(target)
        labels = labels if labels.is_floating_point() else labels.long()
        counted = labels != IGNORED
        self._sum += float((self._right(output, labels) & counted).sum())
        self._count += int(counted.sum())

    def compute(self) -> dict[str, float]:
        """Return the share of correct labels in [0, 1]; nan if there are none."""
        return {"": self._sum / self._count if self._count else math.nan}


class OfAll:
    """A function of all outputs and targets, which several metrics gather together."""

    def __init__(self, name: str, function: Function, gathered: Gathered) -> None:
        self._name, self._function, self._gathered = name, function, gathered

    def update(self, output: Any, target: Any) -> None:
        """Do nothing: outputs are gathered once for all metrics."""

    def compute(self) -> dict[str, float]:
        return _named(self._name, self._function(*self._gathered.joined()))


class MeanLoss:
    """The loss of all samples.

    It is computed of all outputs at once while these are small, unless it grows with their number. Else it is the mean of the batches'
    losses, weighted by what it is a mean of, which is measured by joining the first rows of batches.
    """

    def __init__(self, loss: Callable[[Any, Any], Any]) -> None:
        self._loss = loss
        self._means, self._is_mean = Means(), True
        self._sums: dict[str, tuple[float, float]] = {}  # weighted losses and weights, by what the loss may be a mean of
        self._device = "cpu"
        self._kept: Gathered | None = Gathered("loss", KEPT_BYTES, pads=False)
        self._before: tuple[Any, int] | None = None  # first rows of the last batch

    def update(self, model: nn.Module, batch: Any, samples: int, output: Any, target: Any, again: Function) -> None:
        """Add a batch and the pair of its output and target; `again` recomputes the loss of a batch from the model."""
        loss = self._loss(output, target)
        if loss is None:
            return
        whole = output, target
        if isinstance(getattr(output, "loss", None), Tensor):
            self._kept, whole = None, batch
            count = batches.samples(batch) or 1
            self._verify(batch, *batches.cut(batch, (count + 1) // 2), lambda part: float(again(model, part)))
        else:
            self._verify_beside(whole, samples)
            self._keep(output, target)
        for name, (weight,) in ({SAMPLES: [float(samples)]} | self._means.table([whole], [samples])).items():
            value, total = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = (value + weight * float(loss), total + weight) if weight else (value, total)

    def _verify_beside(self, pair: Any, samples: int) -> None:
        count = batches.samples(pair)
        rows = min(count or samples, HEAD)
        head = pair if count is None else batches.part(pair, 0, rows)
        if self._before is not None:
            with suppress(ConfigError):
                both = joined([self._before[0], head])
                parts, sizes = zip(self._before, (head, rows), strict=True)
                self._verify(both, parts, sizes, lambda pair: float(self._loss(*pair)))
        self._before = head, rows

    def _verify(self, whole: Any, parts: Sequence[Any], sizes: Sequence[int], loss: Callable[[Any], float]) -> None:
        if len(parts) == 1 or not self._is_mean:
            return
        try:
            self._means.shares(whole, parts, sizes, loss)
        except NoMean as error:
            self._is_mean = False
            self._kept = self._kept if error.between else None
        if self._means.adds_up:
            self._is_mean, self._kept = False, None

    def _keep(self, output: Any, target: Any) -> None:
        if self._kept is not None:
            try:
                self._kept.add(output, target)
            except ConfigError:
                self._kept = None
            self._device = next((str(tensor.device) for tensor in tensors(output)), "cpu")

    def compute(self) -> float:
        """Return the mean loss; nan if no batch has one."""
        if not self._sums:
            return math.nan
        if self._kept is not None:
            with suppress(ConfigError):
                return float(self._loss(*moved(self._kept.joined(), self._device)))
        value, total = self._sums[self._means.best(self._sums) if self._is_mean else SAMPLES]
        return value / total if total else math.nan


class WholeMeter:
    """Satisfies `starling.node.tasks.api.Meter`.

    Args:
        forward: (model, batch) -> its output and target.
        loss: (output, target) -> scalar, or None.
        again: (model, batch) -> the same from the model.
        metrics: functions and objects by name, the first decides; none: the loss does.
    """

    def __init__(
        self, forward: Callable[[nn.Module, Any], tuple[Any, Any]], loss: Function, again: Function, metrics: Mapping[str, Any]
    ) -> None:
        self._forward, self._again = forward, again
        self._loss, self._samples = MeanLoss(loss), 0
        functions = [name for name, each in metrics.items() if not is_object(each) and each not in STREAMED]
        self._gathered = Gathered(f"metrics: {', '.join(functions)}") if functions else None
        self._figures = {name: self._figure(name, each) for name, each in metrics.items()}

    def _figure(self, name: str, metric: Any) -> Figure:
        if is_object(metric):
            return Updated(name, metric)
        if metric in STREAMED:
            return Accuracy(STREAMED[metric])
        assert self._gathered is not None
        return OfAll(name, metric, self._gathered)

    def update(self, model: nn.Module, batch: Any, samples: int) -> None:
        """Add a batch. Raises ConfigError: there is more to gather than fits in memory."""
        output, target = self._forward(model, batch)
        self._samples += samples
        self._loss.update(model, batch, samples, output, target, self._again)
        if self._gathered is not None:
            self._gathered.add(output, target)
        for each in self._figures.values():
            each.update(output, target)

    def compute(self) -> Result:
        """Return the values of all metrics; named values of the first also under their names. Raises ConfigError: one is no number."""
        loss = self._loss.compute()
        if not self._figures:
            return Result(loss, loss, self._samples)
        values: dict[str, float] = {}
        for name, figure in self._figures.items():
            values |= {more or name: value for more, value in figure.compute().items()}
        first = next(iter(values))
        others = {name: value for name, value in values.items() if name != first or first not in self._figures}
        return Result(values[first], loss, self._samples, others)


def is_object(metric: Any) -> bool:
    """Return whether a metric is an object that is updated by batches and computed once."""
    return callable(getattr(metric, "update", None)) and callable(getattr(metric, "compute", None))


def accuracy(output: Any, target: Any) -> Tensor:
    """Share of right answers by the largest output; of dicts the labels, and of outputs with `logits` those."""
    return _share(Accuracy(_largest), output, target)


def binary_accuracy(output: Any, target: Any) -> Tensor:
    """Share of right answers 0 and 1 by the sign of one logit."""
    return _share(Accuracy(_signs), output, target)


def _share(counted: Accuracy, output: Any, target: Any) -> Tensor:
    counted.update(output, target)
    return torch.tensor(counted.compute()[""])


def _largest(output: Any, labels: Tensor) -> Tensor:
    best = getattr(output, "logits", output).argmax(-1)
    right: Tensor = best == labels.reshape(best.shape)
    return right.reshape(labels.shape)


def _signs(output: Tensor, labels: Tensor) -> Tensor:
    return (output.reshape(labels.shape) > 0) == (labels > 0)


STREAMED: Mapping[Function, Function] = {accuracy: _largest, binary_accuracy: _signs}


def _labels(target: Any) -> Any:
    if not isinstance(target, Mapping):
        return target
    return next((target[name] for name in LABELS if name in target), target)


def _named(name: str, value: Any) -> dict[str, float]:
    if isinstance(value, Mapping):
        if not value:
            raise ConfigError(f"metrics: {name} gave no figure, but an empty dict; it must give one number, or several by name")
        return {str(key): _number(str(key), each) for key, each in value.items()}
    return {"": _number(name, value)}


def _number(name: str, value: Any) -> float:
    shape = tuple(getattr(value, "shape", ()))
    if math.prod(shape) != 1 or not isinstance(value, Tensor | np.generic | np.ndarray | float | int):
        given = f"of shape {shape}" if shape else value
        raise ConfigError(f"metrics: {name} must give one number, got a {type(value).__name__} {given!s:.60}")
    return float(value)
