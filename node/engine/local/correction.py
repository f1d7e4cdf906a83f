"""Apply the mixing algorithm's correction: to the gradient, to the optimiser's update, or nowhere.

    OnGradient   sgd, or an algorithm that knows no rate: the optimiser steps along correct(gradient)
    OnUpdate     all others: the optimiser steps along the gradient, then x <- x − rate·correct(0)

Shapes: d parameters.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from starling.gossip.api import CorrectsInPlace
from starling.gossip.replica import Replica
from starling.gossip.vector import finite
from starling.node.config.schema import Manifest
from starling.node.engine.corrections import shift
from starling.node.engine.optimizers import corrections_of

Shape = Callable[[Tensor], Tensor]
"""A gradient (d,) -> the gradient clipped and weighted, as the correction uses it."""


class Correction(Protocol):
    """The correction of one local step at a time: `before`, the optimiser's step, `after`, and `keep` if the step counts."""

    def before(self, gradient: Tensor, step: int) -> Tensor | None:
        """Return the direction (d,) of step number `step` >= 1; None: it is not finite, and the step must not be taken."""

    def after(self, rate: float) -> None:
        """Add the part of the correction to the parameters that is not in the direction."""

    def keep(self) -> None:
        """Store the state that the step leaves."""

    def drop(self) -> None:
        """Return to the state before the step, except what was changed in place."""


def correction_of(manifest: Manifest, replica: Replica, weight: float) -> Correction:
    """Return the correction of a swarm's mixing algorithm; `weight` is this node's."""
    can, shape = replica.abilities, _shape(manifest, weight)
    if not can.corrects:
        return Nowhere(shape)
    if corrections_of(manifest).on_updates:
        return OnUpdate(replica, shape)
    return OnGradient(replica, shape) if can.in_place is None else InPlace(replica, shape, can.in_place)


def _shape(manifest: Manifest, weight: float) -> Shape:
    corrections = corrections_of(manifest)
    idle = corrections.clip_norm is None and (corrections.weighs_updates or weight == 1.0)
    return (lambda gradient: gradient) if idle else partial(corrections.shaped, weight=weight)


def _usable(direction: Tensor) -> Tensor | None:
    """Return a direction (d,), if it is finite."""
    return direction if finite(direction) else None


class Nowhere:
    """No correction."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def before(self, gradient: Tensor, step: int) -> Tensor | None:
        """Return the gradient, shaped."""
        return _usable(self._shape(gradient))

    def after(self, rate: float) -> None: ...

    def keep(self) -> None: ...

    def drop(self) -> None: ...


class OnGradient:
    """The optimiser steps along the corrected gradient."""

    def __init__(self, replica: Replica, shape: Shape) -> None:
        self._replica, self._shape = replica, shape
        self._state: Any = None

    def before(self, gradient: Tensor, step: int) -> Tensor | None:
        """Return the corrected gradient."""
        direction, self._state = self._replica.mixer.correct(self._replica.state, self._shape(gradient))
        return _usable(direction)

    def after(self, rate: float) -> None: ...

    def keep(self) -> None:
        """Store the state after this gradient."""
        self._replica.state = self._state

    def drop(self) -> None:
        """Restore the state before this gradient."""


class InPlace:
    """Like `OnGradient`, in the memory of the gradient and of the state."""

    def __init__(self, replica: Replica, shape: Shape, mixer: CorrectsInPlace) -> None:
        self._replica, self._shape, self._mixer = replica, shape, mixer
        self._state: Any = None

    def before(self, gradient: Tensor, step: int) -> Tensor | None:
        """Return the corrected gradient in the gradient's memory; the state is updated. Corrections are bounded, so it stays finite."""
        gradient = self._shape(gradient)
        if not finite(gradient):
            return None
        direction, self._state = self._mixer.correct_in_place(self._replica.state, gradient, step)
        return direction

    def after(self, rate: float) -> None: ...

    def keep(self) -> None:
        """Store the state after this gradient."""
        self._replica.state = self._state

    def drop(self) -> None:
        """Store the state after this gradient as well: its vectors were changed in place."""
        self._replica.state = self._state


class OnUpdate:
    """The optimiser steps along the gradient; the correction is added to the parameters."""

    def __init__(self, replica: Replica, shape: Shape) -> None:
        self._replica, self._shape = replica, shape
        self._state: Any = None
        self._shift: Tensor | None = None

    def before(self, gradient: Tensor, step: int) -> Tensor | None:
        """Return the gradient; the correction is added to the update."""
        gradient = self._shape(gradient)
        self._shift = shift(gradient, self._correct)
        return _usable(gradient)

    def _correct(self, nothing: Tensor) -> Tensor:
        direction, self._state = self._replica.mixer.correct(self._replica.state, nothing)
        return direction

    def after(self, rate: float) -> None:
        """Step along the correction of a gradient of 0."""
        if self._shift is not None:
            self._replica.parameters.sub_(self._shift, alpha=rate)

    def keep(self) -> None:
        """Store the state after this step."""
        self._replica.state = self._state

    def drop(self) -> None:
        """Restore the state before this step."""
