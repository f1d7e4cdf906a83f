"""The gradient noise scale B = tr Σ / |G|²: about the batch size beyond which more samples in a step help little.

Σ is the covariance of the gradient of one sample, G its mean. Now and then a batch is computed in two halves of h₁ and h₂ samples at the
same parameters. Their gradients g₁ and g₂ give, without bias, |g₁ − g₂|² / (1/h₁ + 1/h₂) of tr Σ and g₁·g₂ of |G|²; each is averaged over
measurements, the newest counting at least MEMORY, and B is the ratio of both. The step itself is that of the whole batch within rounding,
and no sample is computed twice.

Source: McCandlish, Kaplan, Amodei et al. 2018, An empirical model of large-batch training (arXiv:1812.06162), appendix A; there the two
sizes are those of one machine's and of all machines' gradients.

Shapes: d parameters.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from starling.gossip.seeds import derive
from starling.node.tasks.batches import part, samples

MEMORY = 0.02  # weight of the newest measurement in the averages, 1/number for the first ones
LEAST = 10  # measurements before a figure is given

Shares = Callable[[Any, Sequence[Any], Sequence[int]], Sequence[float]]
"""(batch, parts of it, their samples) -> weights of their losses in its own."""
Compute = Callable[[Any, int], float]
"""(batch, seed) -> its loss; its gradient is then in the vector that is passed with it."""


class Unmeasured:
    """Stands for the noise scale where it is not measured."""

    figure: ClassVar[None] = None


@dataclass(slots=True)
class NoiseScale:
    """Averages of one node's measurements, one every `every` local steps."""

    every: int
    count: int = 0
    trace: float = 0.0  # of Σ
    square: float = 0.0  # |G|²
    memory: float = MEMORY

    def due(self, step: int, batch: Any) -> bool:
        """Tell if local step number `step` ≥ 1 measures."""
        return step % self.every == 0 and (samples(batch) or 0) >= 2

    def measure(self, compute: Compute, batch: Any, gradient: Tensor, seed: int, shares: Shares) -> float:
        """Return the loss of a batch of two samples or more; `gradient` (d,) holds its gradient, as if computed at once.

        `shares` gives the weights of the halves in the whole.
        """
        count = samples(batch)
        assert count is not None
        first = count // 2
        halves, sizes = [part(batch, 0, first), part(batch, first, count)], [first, count - first]
        one_share, other_share = shares(batch, halves, sizes)
        loss = one_share * compute(halves[0], seed)
        one = gradient.clone()
        loss += other_share * compute(halves[1], derive(seed, "half"))
        self.record(one, gradient, 1.0 / first + 1.0 / (count - first))
        gradient.mul_(other_share).add_(one, alpha=one_share)
        return loss

    def record(self, one: Tensor, other: Tensor, parts: float) -> None:
        """Take the gradients of two parts of a batch; `parts`: the sum of the inverses of their sizes. Ignored if not finite."""
        trace, square = float((one - other).square().sum()) / parts, float(one @ other)
        if not math.isfinite(trace + square):
            return
        self.count += 1
        weight = max(1.0 / self.count, self.memory)
        self.trace += weight * (trace - self.trace)
        self.square += weight * (square - self.square)

    @property
    def figure(self) -> float | None:
        """Return the noise scale in samples; None before LEAST measurements, and where noise hides the gradient."""
        return self.trace / self.square if self.count >= LEAST and self.square > 0.0 else None
