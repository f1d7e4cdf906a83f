"""How far a peer's model has come along our own way, on coordinates that no peer knows.

    way        w = x - x_0: our vector less the one we began with
    progress   (x_j - x_0)·w / ‖w‖² of a peer's vector x_j: 1 for our own, 0 where we began

Of an honest peer it is about P²/(P² + D²), with P the length of what all models have in common of their ways and D of what a node's own
steps added since: nearly the same for all peers, whatever their data. Only what moved as our own model did adds to it: noise does not.

Shapes: D numbers of the shared vector, k of one exchange, s watched, n of these in the exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
import numpy.typing as npt

from starling.gossip.compress.support import Support
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.vector import SAMPLED, products

Uniform = Callable[[int], npt.NDArray[np.float64]]
"""n -> (n,) numbers in (0, 1), which peers must not be able to predict."""


@dataclass(frozen=True, slots=True, eq=False)
class Along:
    """Our way on an exchange's coordinates."""

    at: Tensor  # (n,) int64, positions among the exchange's values
    way: Tensor  # (n,) on the CPU

    def made(self, difference: Tensor, scale: float = 1.0) -> float | None:
        """Return a peer's progress by our values less its values, `scale` times `difference` (k,) on the CPU; None: there is none."""
        return made(self.way, difference.index_select(0, self.at), scale)


@dataclass(frozen=True, slots=True, eq=False)
class Beginning:
    """Where a node began."""

    places: Tensor  # (s,) int64, ascending coordinates
    values: Tensor  # (s,) on the CPU

    def along(self, support: Support, vector: Tensor) -> Along | None:
        """Return our way to `vector` (D,) on a support; None: its values are not those of coordinates."""
        found = support.find(self.places, vector.numel())
        if found is None:
            return None
        which, at = found
        now = vector.index_select(0, self.places[which].to(vector.device)).cpu()
        return Along(at, now - self.values[which])


def beginning(vector: Tensor, uniform: Uniform) -> Beginning:
    """Return `vector` (D,) as the beginning, on all of its coordinates, or of many on SAMPLED that are drawn."""
    dim = vector.numel()
    places = torch.arange(dim) if dim <= SAMPLED else torch.from_numpy(np.unique((uniform(SAMPLED) * dim).astype(np.int64).clip(max=dim - 1)))
    return Beginning(places, vector.index_select(0, places.to(vector.device)).cpu())


def made(way: Tensor, difference: Tensor, scale: float = 1.0) -> float | None:
    """Return a peer's progress by our way (n,) and our values less its values, `scale` times `difference` (n,).

    None: we have not moved, or it is not finite.
    """
    along, length, _ = products(difference, way)
    progress = 1.0 - scale * along / length if length > 0.0 else inf
    return progress if isfinite(progress) else None
