"""A stage's position in its crew, the current micro-batch, and the sums over micro-batches."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from starling.gossip.vector import finite
from starling.node.config.schema import Manifest


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Micro-batch `number` of a local step of a crew."""

    crew: int
    step: int
    number: int


@dataclass(frozen=True, slots=True)
class Place:
    """A stage of the crews that a manifest describes."""

    manifest: Manifest
    stage: int

    @property
    def most(self) -> int:
        """Return the samples of the largest micro-batch."""
        return -(-self.manifest.task.batch_size // self.manifest.crew.micro_batches)

    def bounds(self, number: int) -> tuple[int, int]:
        """Return the first sample of a micro-batch within its batch, and the end."""
        size, count = self.manifest.task.batch_size, self.manifest.crew.micro_batches
        return size * number // count, size * (number + 1) // count

    def samples(self, number: int) -> int:
        """Return the samples of a micro-batch."""
        begin, end = self.bounds(number)
        return end - begin

    def chance(self, at: MicroBatch) -> tuple[int, int, int, int]:
        """Return what seeds the draws of a micro-batch at this stage."""
        return at.crew, self.stage, at.step, at.number


class Totals:
    """A stage's part of a step, or of an evaluation.

    Attributes:
        loss: nan if there were numbers that are not finite.
        over: how many times as long as usual what the last task was given is, if that is too long (`bound.py`); else 0.
        value: the task's score, summed over `samples`.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset all sums."""
        self.loss, self.value, self.samples, self.over = 0.0, 0.0, 0, 0.0

    def add(self, value: float, loss: float, samples: int) -> None:
        """Add the score of held-out samples."""
        self.value += value
        self.loss += loss
        self.samples += samples

    def finite(self, values: Tensor) -> Tensor:
        """Return values on the CPU; zeros if any is not finite, so that all stages reach the step's end and undo it."""
        values = values.detach().cpu()
        if finite(values):
            return values
        self.loss = math.nan
        return torch.zeros_like(values)

    def summary(self, squares: float) -> tuple[float, float, float, int, bool]:
        """Return (squares, loss, value, samples, whether all are finite); zeros if they are not."""
        if all(map(math.isfinite, (squares, self.loss, self.value))):
            return squares, self.loss, self.value, self.samples, True
        return 0.0, 0.0, 0.0, 0, False
