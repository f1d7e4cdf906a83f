"""Corrections of the gradients of a user's own loop (`starling.node.script.hooks`).

Shapes: d parameters, n of a stretch of them.
"""

from typing import Protocol

from torch import Tensor


class Correction(Protocol):
    """Changes gradients before a local step uses them."""

    @property
    def active(self) -> bool:
        """Tell if there is anything to change now; while there is not, gradients are not gathered."""

    def take(self, gradient: Tensor, start: int) -> None:
        """Correct part of a gradient in place.

        Args:
            gradient: (n,) coordinates `start` to `start` + n of the gradient (d,), of the vector's dtype: float32, or float64 where a
                parameter is. It is 0 for parameters without a gradient; what is written there is dropped.
            start: the first coordinate, >= 0.
        """

    def stepped(self) -> None:
        """Note that a local step is over, in which each coordinate was taken at most once by each optimiser's step."""


class Nowhere:
    """No correction; closures may be evaluated any number of times. Satisfies `Correction`."""

    active = False

    def take(self, gradient: Tensor, start: int) -> None:
        """Leave the gradient unchanged."""

    def stepped(self) -> None: ...
