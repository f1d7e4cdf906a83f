"""A bound on how long an activation or a gradient of a neighbour may be, by those that came over the same lane before.

A stage cannot check that what comes is what the stage before computed: nobody else has the parameters that it used (decision 142). What is
`MOST` times as long as usual is made that long, so a forged one moves this stage no further than an honest one of that length.
What is not longer stays as it is, to the bit.

Shapes: m samples of a micro-batch.
"""

from collections import deque
from statistics import median

import torch
from torch import Tensor

MOST = 16.0
"""Times the usual length. No honest stage's was longer than 6.2 times at rates with which a model learns (decision 142)."""
REMEMBERED = 256  # lengths of a lane
ENOUGH = 4  # before which nothing is usual: of fewer a single short one would shorten all others


class LaneBound:
    """Shortens what is too long. `shortened`: times the usual length of what came last; 0: it stayed as it is."""

    def __init__(self) -> None:
        self._lengths: deque[float] = deque(maxlen=REMEMBERED)
        self.shortened = 0.0

    def __call__(self, values: Tensor) -> Tensor:
        """Return (m, …) finite values, at most MOST times as long as usual: the root of the mean square, by its median."""
        length = float(torch.linalg.vector_norm(values, dtype=torch.float64)) / values.numel() ** 0.5
        usual = median(self._lengths) if len(self._lengths) >= ENOUGH else 0.0
        if usual and length > MOST * usual:
            self.shortened = length / usual
            self._lengths.append(MOST * usual)
            return values.mul(MOST * usual / length)
        self.shortened = 0.0
        self._lengths.append(length)
        return values
