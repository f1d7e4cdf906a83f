"""A mixing algorithm that does nothing: what every other one may leave as it is.

Shapes: d parameters.
"""

from __future__ import annotations

from typing import Any, ClassVar

from starling.gossip.api import Averaging, Gathering, Phase, Swapping
from starling.gossip.lazy_torch import Tensor
from starling.gossip.mix.averaging import Plain


class MixerBase:
    """Plain averages of the model after its local steps, no correction, no state: DSGD. Satisfies `starling.gossip.api.Mixer`."""

    __slots__ = ()
    asynchronous: ClassVar[bool] = False
    static: ClassVar[bool] = False

    @property
    def edge(self) -> Averaging | Swapping | Gathering:
        """Differences that are averaged."""
        return Plain()

    def size(self, dim: int) -> int:
        """One vector: the model."""
        return dim

    def start(self, x: Tensor) -> Any:
        """No state."""
        return None

    def correct(self, state: Any, gradient: Tensor) -> tuple[Tensor, Any]:
        """The gradient itself."""
        return gradient, state

    def publish(self, state: Any, x: Tensor, phase: Phase) -> tuple[Tensor, Any]:
        """The model as it is."""
        return x, state

    def shared(self, state: Any, x: Tensor) -> Tensor:
        """The model."""
        return x

    def absorb(self, state: Any, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Any]:
        """The averaged model."""
        return shared, state

    def corrected(self, state: Any, flows: Tensor) -> Any:
        """There are no flows."""
        return state
