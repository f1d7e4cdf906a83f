"""Sources of a local step's gradient: a batch, and wrappers that add noise, a second gradient, or a measurement.

A source is called with the number of the step, counted from 0, the round, and the vector (d,) that its gradient replaces. It returns the
loss and whether the step may be taken: a loss that is no number says no, but for private gradients, whose steps must not depend on data.

Shapes: d parameters.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from starling.gossip.replica import Replica
from starling.gossip.seeds import derive
from starling.node.engine import gradient_point
from starling.node.engine.local.local_model import LocalModel
from starling.node.engine.local.rates import Rates
from starling.node.engine.noise_scale import NoiseScale, Shares
from starling.node.engine.privacy.dp_sgd import PrivateGradients
from starling.node.engine.vectors import GradientWindow


class GradientSource(Protocol):
    """Computes gradients: (step, round, into) -> (loss, whether the step may be taken)."""

    def __call__(self, step: int, round: int, into: Tensor) -> tuple[float, bool]:
        """Compute the gradient of a step into a vector (d,) -> the loss, and whether the gradient is finite."""

    def forget(self) -> None:
        """Delete what is stored of earlier gradients: the model was replaced."""


Compute = Callable[[Any, Tensor, int], float]
"""(batch, into, seed) -> the loss of a batch, whose gradient replaces what is in `into`; `seed`: of random layers."""


class Batch:
    """The gradient of a training batch."""

    def __init__(self, model: LocalModel, compute: Compute) -> None:
        self._model, self._compute = model, compute

    def __call__(self, step: int, round: int, into: Tensor) -> tuple[float, bool]:
        """Draw a batch and compute its gradient."""
        model = self._model
        loss = self._compute(model.batch(step), into, derive(model.manifest.seed, "layers", model.node, step + 1))
        return loss, math.isfinite(loss)

    def forget(self) -> None: ...


class MeasuredBatch(Batch):
    """Like `Batch`, in two halves on steps that measure the gradient noise scale."""

    def __init__(self, model: LocalModel, compute: Compute, noise: NoiseScale, shares: Shares) -> None:
        """`shares` as of `NoiseScale.measure`."""
        super().__init__(model, compute)
        self._noise, self._shares = noise, shares

    def __call__(self, step: int, round: int, into: Tensor) -> tuple[float, bool]:
        """Draw a batch and compute its gradient."""
        model = self._model
        batch, seed = model.batch(step), derive(model.manifest.seed, "layers", model.node, step + 1)
        if not self._noise.due(step + 1, batch):
            loss = self._compute(batch, into, seed)
        else:
            loss = self._noise.measure(lambda half, drawn: self._compute(half, into, drawn), batch, into, seed, self._shares)
        return loss, math.isfinite(loss)


class Windowed:
    """Marks the time in which a gradient is computed."""

    def __init__(self, source: GradientSource, window: GradientWindow) -> None:
        self._source, self._window = source, window

    def __call__(self, step: int, round: int, into: Tensor) -> tuple[float, bool]:
        """Compute a gradient within the window."""
        with self._window():
            return self._source(step, round, into)

    def forget(self) -> None:
        self._source.forget()


class Optimistic:
    """Twice the gradient minus the previous one (`node.engine.gradient_point`)."""

    def __init__(self, source: GradientSource) -> None:
        self._source = source
        self._before: Tensor | None = None

    def __call__(self, step: int, round: int, into: Tensor) -> tuple[float, bool]:
        """Compute a gradient and store it for the next step."""
        loss, is_finite = self._source(step, round, into)
        if is_finite:
            before, self._before = self._before, into.clone()
            into.copy_(gradient_point.optimistic(into, before))
        return loss, is_finite

    def forget(self) -> None:
        """Delete the last gradient."""
        self._before = None
        self._source.forget()


class LookAhead:
    """The gradient at a second point, found by a first gradient (`node.engine.gradient_point`); `second` computes it without a window."""

    def __init__(self, source: GradientSource, second: GradientSource, replica: Replica, model: LocalModel, rates: Rates) -> None:
        self._source, self._second, self._replica, self._model, self._rates = source, second, replica, model, rates

    def __call__(self, step: int, round: int, into: Tensor) -> tuple[float, bool]:
        """Compute both gradients; the loss is the first's."""
        loss, is_finite = self._source(step, round, into)
        if is_finite:
            replica = self._replica
            x = replica.parameters.clone()
            replica.parameters.copy_(
                gradient_point.point(
                    self._model.manifest.optimizer,
                    x,
                    into,
                    lambda gradient: replica.mixer.correct(replica.state, gradient)[0],
                    self._rates.at(round),
                )
            )
            self._second(step, round, into)
            replica.parameters.copy_(x)
        return loss, is_finite

    def forget(self) -> None:
        self._source.forget()


class Private:
    """A noised gradient from single samples; whether the step is taken does not depend on the data."""

    def __init__(self, private: PrivateGradients, model: LocalModel) -> None:
        self._private, self._model = private, model

    def __call__(self, step: int, round: int, into: Tensor) -> tuple[float, bool]:
        """Compute a gradient; the loss is nan where no data are used."""
        self._model.binding.load()
        noised, loss = self._private.gradient()
        into.copy_(noised)
        return loss, True

    def forget(self) -> None: ...
