"""Where in a flat vector (d,) the numbers of a support lie, a stretch of them at a time: to read there, and to write.

The coordinates of blocks are not listed: rows of a vector that is cut into blocks are copied several times as fast.

Shapes: k numbers of a stretch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from starling.gossip.compress.buffers import empty
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.vector import stretches


class Places(Protocol):
    """A stretch: `part` of all numbers of a support."""

    @property
    def part(self) -> slice:
        """Which of the support's numbers, in ascending order of their coordinates."""

    def read(self, x: Tensor) -> Tensor:
        """(k,) of x (d,), perhaps a view."""

    def write(self, x: Tensor, values: Tensor) -> None:
        """Values (k,) become those of x (d,)."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Coordinates in a row."""

    part: slice
    index: slice

    def read(self, x: Tensor) -> Tensor:
        """A view."""
        return x[self.index]

    def write(self, x: Tensor, values: Tensor) -> None:
        """Copied."""
        x[self.index] = values


@dataclass(frozen=True, slots=True)
class Listed:
    """Coordinates (k,) int64, each once."""

    part: slice
    index: Tensor

    def read(self, x: Tensor) -> Tensor:
        """A copy."""
        return x.index_select(0, self.index.to(x.device))  # four times as fast as x[index]

    def write(self, x: Tensor, values: Tensor) -> None:
        """Copied."""
        x.index_copy_(0, self.index.to(x.device), values)


@dataclass(frozen=True, slots=True)
class Rows:
    """Whole blocks, and perhaps the shorter block at a vector's end."""

    part: slice
    rows: Tensor  # (b,) int64, the numbers of whole blocks
    block: int  # coordinates in one
    rest: int = 0  # coordinates of the last block that follow; 0: it is not among them

    def read(self, x: Tensor) -> Tensor:
        """A copy."""
        taken = empty(len(self.rows) * self.block + self.rest, x.device, x.dtype)
        whole = taken[: len(self.rows) * self.block].view(-1, self.block)
        torch.index_select(self._blocks(x), 0, self.rows.to(x.device), out=whole)
        taken[whole.numel() :] = x[len(x) - self.rest :]
        return taken

    def write(self, x: Tensor, values: Tensor) -> None:
        """Copied."""
        whole = values[: len(self.rows) * self.block].view(-1, self.block)
        self._blocks(x).index_copy_(0, self.rows.to(x.device), whole)
        x[len(x) - self.rest :] = values[whole.numel() :]

    def _blocks(self, x: Tensor) -> Tensor:
        """(d/block, block) of whole ones, a view."""
        return x[: len(x) // self.block * self.block].view(-1, self.block)


def places(index: slice | Tensor, count: int, most: int) -> Iterator[Places]:
    """Of `count` coordinates, as `starling.gossip.vector.stretches` cuts them, at most `most` at a time."""
    for part, at in stretches(index, count, most):
        yield Stretch(part, at) if isinstance(at, slice) else Listed(part, at)


def rows(numbers: Tensor, block: int, rest: int, most: int) -> Iterator[Places]:
    """Of whole blocks (b,), and the `rest` coordinates of a shorter one at the end, at most `most` at a time, or one block."""
    step, end = max(1, most // block), len(numbers) * block + rest
    for first in range(0, len(numbers) + (rest > 0), step):
        some, last = numbers[first : first + step], first + step >= len(numbers) + (rest > 0)
        yield Rows(slice(first * block, end if last else (first + step) * block), some, block, rest if last else 0)
