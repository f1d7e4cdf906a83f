"""One local step along a corrected gradient.

A step that would leave a number that is not finite is undone: loss and direction are checked before it, the parameters after it. So no
NaN is ever sent to a peer, and a faulty batch costs one step.

Shapes: d parameters.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Generator, Tensor

from starling.gossip.vector import finite
from starling.node.engine.flat_optimizer import Optimizer
from starling.node.engine.local.correction import Correction
from starling.node.engine.local.gradient_source import GradientSource
from starling.node.engine.local.guard import Guard
from starling.node.engine.local.local_model import LocalModel
from starling.node.engine.local.rates import Rates

Chance = Callable[[int], Generator | None]
"""Maps the number of a step to the generator that rounds its moments; None: moments are not rounded."""


class Descent:
    """The local optimiser, which can be made again with empty state; `weight` multiplies its steps where updates are weighed."""

    def __init__(self, make: Callable[[], Optimizer], weight: float, chance: Chance) -> None:
        self._make, self.weight, self.chance = make, weight, chance
        self.optimizer = make()

    def renew(self) -> None:
        """Delete the optimiser's state."""
        self.optimizer = self._make()


class LocalStep(Protocol):
    """Does the local steps of one node.

    Attributes:
        steps: done, undone ones included.
        undone: of these.
    """

    steps: int
    undone: int

    def __call__(self, round: int) -> float | None:
        """Do one step at the rate of `round` -> its loss, nan if it used no data; None: it was undone. Either way its batch was used."""

    def forget(self, *, gradients: bool) -> None:
        """Delete the optimiser's state and, with `gradients`, that of sources: the model was replaced."""


class GradientStep:
    """A step along a gradient. Satisfies `LocalStep`."""

    def __init__(
        self, model: LocalModel, source: GradientSource, correction: Correction, descent: Descent, guard: Guard, rates: Rates
    ) -> None:
        self._model, self.source, self._correction = model, source, correction
        self.descent, self._guard, self._rates = descent, guard, rates
        self._collects, self._check, self._keeps = model.binding.after_step, model.binding.check, model.side.after_step
        self.steps = self.undone = 0

    def __call__(self, round: int) -> float | None:
        """Compute a gradient and apply it."""
        gradient, module = self._model.gradient, self._model.module
        if not module.training:
            module.train()
        self.steps += 1
        loss, is_finite = self.source(self.steps - 1, round, gradient)
        self._check()
        return self.apply(round, loss, gradient, is_finite=is_finite)

    def apply(self, round: int, loss: float, gradient: Tensor, *, is_finite: bool) -> float | None:
        """Step along a gradient (d,), which may be overwritten, unless it is not finite -> the loss; None: the step was undone."""
        direction = self._correction.before(gradient, self.steps)
        if direction is None or not is_finite:
            self.undone += 1
            self._guard.reset_buffers()
            return None
        model, rate = self._model, self._rates.at(round)
        descent = self.descent
        descent.optimizer.step(model.trained, direction, rate, weight=descent.weight, chance=descent.chance(self.steps))
        self._correction.after(rate)
        for collect in self._collects:
            collect()
        if not finite(model.x):
            self.undone += 1
            self._guard.restore()
            descent.renew()  # the optimiser's state caused the non-finite update
            self._correction.drop()
            return None
        self._correction.keep()
        for keep in self._keeps:
            keep()
        return loss

    def forget(self, *, gradients: bool) -> None:
        """Delete stored state."""
        self.descent.renew()
        if gradients:
            self.source.forget()
