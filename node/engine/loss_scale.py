"""Loss scaling: in float16 small gradients would become 0, so the loss is multiplied by a power of two, and the gradient divided by it.

The scale is halved where a gradient is not finite, and doubled after GROWTH_STEPS gradients that were. Deviation from the source and from
`torch.amp.GradScaler`: the batch is computed again at the smaller scale, so that no step is lost and every node does as many as it says.

Source: Micikevicius et al. 2018, Mixed precision training (arXiv:1710.03740).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from starling.gossip.vector import finite

FIRST = 2.0**16
MOST = 2.0**24
GROWTH_STEPS = 2000
_NAME = "numerics.scale"  # in a checkpoint


class Scale(Protocol):
    """The factor by which losses are multiplied."""

    @property
    def scale(self) -> float:
        """Return the present scale, in [1, MOST]."""

    def unscaled(self, gradient: Tensor) -> bool:
        """Divide a gradient (d,) by the scale in place -> False: it is not finite, and must be computed again at the new scale."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the state by name, for a checkpoint."""

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state of a checkpoint, if it has one. Raises ValueError: it is invalid, and nothing has changed."""


class Unscaled:
    """Losses without scaling."""

    scale = 1.0

    def unscaled(self, gradient: Tensor) -> bool:
        return True

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Ignore the state of a run in another precision."""


@dataclass(slots=True)
class LossScale:
    """A scale that adapts, and the number of consecutive finite gradients at it. Satisfies `Scale`."""

    scale: float = FIRST
    good: int = 0

    def unscaled(self, gradient: Tensor) -> bool:
        """Divide the gradient and count it; if it is not finite, lower the scale."""
        if finite(gradient):
            gradient.mul_(1.0 / self.scale)
            self.good += 1
            if self.good >= GROWTH_STEPS:
                self.scale, self.good = min(2.0 * self.scale, MOST), 0
            return True
        self.good = 0
        if self.scale == 1.0:
            return True  # without scaling, a non-finite gradient is not the scale's fault
        self.scale /= 2.0
        return False

    def tensors(self) -> dict[str, Tensor]:
        """Return scale and count, (2,) float64."""
        return {_NAME: torch.tensor([self.scale, float(self.good)], dtype=torch.float64)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the scale; the first one stays where none was stored."""
        state = tensors.get(_NAME)
        if state is None:
            return
        values = state.tolist() if state.shape == (2,) and state.dtype == torch.float64 else []
        if not values or not 1.0 <= values[0] <= MOST or not 0.0 <= values[1] < GROWTH_STEPS:
            raise ValueError("holds no loss scale where one is said to be")
        self.scale, self.good = values[0], int(values[1])
