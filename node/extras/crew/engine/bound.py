"""A bound on the length of an activation or gradient from a neighboring stage, by those received earlier on the same lane.

A stage cannot verify its input: no other machine has the parameters that produced it (decision 0142). An input more than `MOST` times as
long as usual is scaled to that length, so a forged one has no more effect than an honest one of that length. Shorter inputs are unchanged,
bit for bit.

Shapes: m samples of a micro-batch.
"""

from collections import deque
from statistics import median

import torch
from torch import Tensor

MOST = 16.0
"""Times the usual length. No honest stage's was longer than 6.2 times at rates with which a model learns (decision 142)."""
REMEMBERED = 256  # number of stored lengths per lane
ENOUGH = 4  # inputs needed before any is scaled: with fewer a single short one would shorten all others


class LaneBound:
    """Scales down inputs that are too long. `shortened`: length of the last input in usual lengths; 0: it was unchanged."""

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
