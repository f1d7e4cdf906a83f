"""How far a peer's model has come along our own way, on coordinates that no peer knows.

    way        w = x - x_0: our vector less the one we began with
    progress   (x_j - x_0)·w / ‖w‖² of a peer's vector x_j: 1 for our own, 0 where we began

Of an honest peer it is about P²/(P² + D²), with P the length of what all models have in common of their ways and D of what a node's own
steps added since: nearly the same for all peers, whatever their data. Only what moved as our own model did adds to it: noise does not.

Shapes: D numbers of the shared vector, k of one exchange, s watched, n of these in the exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import Protocol

import numpy as np
import numpy.typing as npt

from starling.gossip.compress.support import Support
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.vector import SAMPLED

Uniform = Callable[[int], npt.NDArray[np.float64]]
"""n -> (n,) numbers in (0, 1), which peers must not be able to predict."""


Made = Callable[[Tensor, float], float | None]
"""(difference (k,) on the CPU, scale) -> a peer's progress by our values less its own, `scale` times the difference; None: unknown."""


class Beginning(Protocol):
    """Where a node began."""

    def along(self, support: Support, vector: Tensor) -> Made:
        """Return what measures a peer's progress along our way to `vector` (D,), by differences on a support."""


class Watched:
    """A beginning of which some coordinates are known. Satisfies `Beginning`."""

    def __init__(self, vector: Tensor, uniform: Uniform) -> None:
        """Begin at `vector` (D,), known on all of its coordinates, or where there are many on SAMPLED that are drawn."""
        dim, device = vector.numel(), vector.device
        drawn = (uniform(SAMPLED) * dim).astype(np.int64).clip(max=dim - 1) if dim > SAMPLED else np.arange(dim)
        self.places = torch.from_numpy(np.unique(drawn))  # (s,) int64, ascending
        self.values = vector.index_select(0, self.places.to(device)).cpu()  # (s,)

    def along(self, support: Support, vector: Tensor) -> Made:
        """Return what measures it; where a support's values are not those of coordinates nothing is known."""
        found = support.find(self.places, vector.numel())
        if found is None:
            return unknown
        which, at = found
        way = vector.index_select(0, self.places[which].to(vector.device)).cpu() - self.values[which]
        return lambda difference, scale: progress_of(way, difference.index_select(0, at), scale)


class Unwatched:
    """A beginning of which nothing is known. Satisfies `Beginning`."""

    def along(self, support: Support, vector: Tensor) -> Made:
        return unknown


def unknown(_difference: Tensor, _scale: float) -> None:
    """Return that no progress is known."""


def progress_of(way: Tensor, difference: Tensor, scale: float = 1.0) -> float | None:
    """Return the progress of a peer by our way (n,) and our values less its values, `scale` times `difference` (n,).

    None: we have not moved, or it is not finite.
    """
    exact = way.double()
    length = float(exact @ exact)
    progress = 1.0 - scale * float(difference.double() @ exact) / length if length > 0.0 else inf
    return progress if isfinite(progress) else None
