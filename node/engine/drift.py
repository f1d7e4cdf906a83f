"""How far a node's own local steps go between two exchanges, measured on some coordinates of the shared vector.

Shapes: D numbers of the shared vector.
"""

from collections.abc import Callable

from torch import Tensor

from starling.gossip.vector import sampled


class Drift:
    """From where exchanges left the shared vector to where local steps take it. It costs nothing until somebody is told of it."""

    def __init__(self) -> None:
        self._began: Tensor | None = None
        self._told: Callable[[float], None] | None = None

    def measured_by(self, told: Callable[[float], None]) -> None:
        """Tell the length of each way from now on."""
        self._told = told

    def begin(self, shared: Callable[[], Tensor]) -> None:
        """Local steps begin at the vector (D,) that `shared` returns: exchanges are over, or the model is new."""
        if self._told is not None:
            self._began = sampled(shared())[0].clone()

    def end(self, shared: Callable[[], Tensor]) -> None:
        """The vector (D,) that `shared` returns is shown to a peer, for the first time since `begin`."""
        began, self._began = self._began, None
        if self._told is not None and began is not None:
            now, scale = sampled(shared())
            self._told(scale * float((now - began).norm()))
