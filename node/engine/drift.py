"""Measure how far a node's own local steps go between two exchanges, on some coordinates of the shared vector.

Shapes: D numbers of the shared vector.
"""

from collections.abc import Callable

from torch import Tensor

from starling.gossip.vector import sampled


class Drift:
    """Measures how far local steps move the shared vector between exchanges; does nothing until `measured_by` is called."""

    def __init__(self) -> None:
        self._began: Tensor | None = None
        self._told: Callable[[float], None] | None = None

    def measured_by(self, told: Callable[[float], None]) -> None:
        """Report the length of each drift to `told` from now on."""
        self._told = told

    def begin(self, shared: Callable[[], Tensor]) -> None:
        """Note the vector (D,) that `shared` returns as the start of local steps: exchanges are over, or the model is new."""
        if self._told is not None:
            self._began = sampled(shared())[0].clone()

    def end(self, shared: Callable[[], Tensor]) -> None:
        """Report the drift to the vector (D,) that `shared` returns, which is shown to a peer for the first time since `begin`."""
        began, self._began = self._began, None
        if self._told is not None and began is not None:
            now, scale = sampled(shared())
            self._told(scale * float((now - began).norm()))
