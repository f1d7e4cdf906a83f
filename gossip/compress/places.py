"""Read and write the numbers of a support in a flat vector (d,), all of them or some at a time.

The coordinates of blocks are not listed: rows of a vector that is cut into blocks are copied several times as fast.

Shapes: k numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from starling.gossip.compress.buffers import empty
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.vector import stretches


class Places(Protocol):
    """Positions of some of a support's numbers."""

    @property
    def part(self) -> slice:
        """The part of the support's numbers, in ascending order of their coordinates."""

    def read(self, x: Tensor) -> Tensor:
        """Return (k,) of x (d,), perhaps a view."""

    def write(self, x: Tensor, values: Tensor) -> None:
        """Set these coordinates of x (d,) to values (k,)."""

    def cut(self, most: int) -> Iterator[Places]:
        """Yield all of a support's positions in pieces of at most `most` numbers, or one block."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive coordinates."""

    part: slice
    index: slice

    def read(self, x: Tensor) -> Tensor:
        """Return a view."""
        return x[self.index]

    def write(self, x: Tensor, values: Tensor) -> None:
        x[self.index] = values

    def cut(self, most: int) -> Iterator[Places]:
        """Yield shorter stretches."""
        for part, index in stretches(self.index, self.part.stop, most):
            assert isinstance(index, slice)
            yield Stretch(part, index)


@dataclass(frozen=True, slots=True)
class Listed:
    """Coordinates (k,) int64, each once."""

    part: slice
    index: Tensor

    def read(self, x: Tensor) -> Tensor:
        """Return a copy."""
        return x.index_select(0, self.index.to(x.device))  # four times as fast as x[index]

    def write(self, x: Tensor, values: Tensor) -> None:
        x.index_copy_(0, self.index.to(x.device), values)

    def cut(self, most: int) -> Iterator[Places]:
        """Yield shorter lists."""
        for first in range(0, self.part.stop, most):
            index = self.index[first : first + most]
            yield Listed(slice(first, first + len(index)), index)


@dataclass(frozen=True, slots=True)
class Rows:
    """Whole blocks, and perhaps the shorter block at a vector's end."""

    part: slice
    rows: Tensor  # (b,) int64, the numbers of whole blocks
    block: int  # coordinates in one
    rest: int = 0  # coordinates of the last block that follow; 0: it is not among them

    def read(self, x: Tensor) -> Tensor:
        """Return a copy."""
        taken = empty(len(self.rows) * self.block + self.rest, x.device, x.dtype)
        whole = taken[: len(self.rows) * self.block].view(-1, self.block)
        torch.index_select(self._blocks(x), 0, self.rows.to(x.device), out=whole)
        taken[whole.numel() :] = x[len(x) - self.rest :]
        return taken

    def write(self, x: Tensor, values: Tensor) -> None:
        whole = values[: len(self.rows) * self.block].view(-1, self.block)
        self._blocks(x).index_copy_(0, self.rows.to(x.device), whole)
        x[len(x) - self.rest :] = values[whole.numel() :]

    def cut(self, most: int) -> Iterator[Places]:
        """Fewer rows, the shorter block with the last of them or alone."""
        step, count = max(1, most // self.block), len(self.rows) + (self.rest > 0)
        for first in range(0, count, step):
            some, rest = self.rows[first : first + step], self.rest if first + step >= count else 0
            begin = first * self.block
            yield Rows(slice(begin, begin + len(some) * self.block + rest), some, self.block, rest)

    def _blocks(self, x: Tensor) -> Tensor:
        """Return (d/block, block) of whole ones, a view."""
        return x[: len(x) // self.block * self.block].view(-1, self.block)
