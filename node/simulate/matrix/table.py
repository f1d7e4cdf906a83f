"""Parts of rows, moved as units of neighbouring numbers: what masks and whole vectors are about, at the speed of memory.

A `Table` pads its rows to whole blocks of 64, so that a block of a mask is one piece wherever it lies. The padding is 0 and stays 0
under everything that is done here: differences, odd functions and multiples of zeros.

Shapes: r rows of a table, g exchanges of a group, k coordinates of each, c pieces of u numbers that hold them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from starling.gossip.compress.header import BLOCK


@dataclass(frozen=True, slots=True, eq=False)
class Picks:
    """Coordinates of g exchanges, k each.

    Args:
        unit: u, numbers in a piece; 0: whole rows.
        pieces: (g, c) int64, ascending, on the table's device; empty for whole rows. The last may reach beyond k: into padding, or, of
            unit 1, nowhere.
        count: k.
    """

    unit: int
    pieces: Tensor
    count: int

    @property
    def width(self) -> int:
        """c·u, or k for whole rows."""
        return self.pieces.shape[1] * self.unit if self.unit else self.count

    def of(self, which: Tensor | slice) -> Picks:
        """Those of some of the exchanges."""
        return Picks(self.unit, self.pieces[which] if self.unit else self.pieces, self.count)

    def pad(self, values: Tensor) -> Tensor:
        """(g, k) -> (g, c·u), zeros at the end."""
        missing = self.width - self.count
        return torch.nn.functional.pad(values, (0, missing)) if missing else values


@dataclass(slots=True)
class Table:
    """Vectors side by side. The rows of `wide` are padded with zeros; `rows` is what is in use.

    Args:
        wide: (r, w), w a multiple of 64.
        width: numbers of a row in use.
    """

    wide: Tensor
    width: int
    rows: Tensor = field(init=False)
    """(r, width), a view."""

    def __post_init__(self) -> None:
        self.rows = self.wide[:, : self.width]

    def gather(self, rows: Tensor, picks: Picks) -> Tensor:
        """(g,) rows -> (g, c·u) their values, a copy."""
        if picks.unit == 0:
            return self.rows.index_select(0, rows)
        flat = self.wide.view(-1, picks.unit) if picks.unit > 1 else self.wide.view(-1)
        at = self._at(rows, picks)
        return (
            flat.index_select(0, at).view(rows.numel(), -1) if picks.unit > 1 else flat.take(at).view(rows.numel(), -1)
        )

    def put(self, rows: Tensor, picks: Picks, values: Tensor) -> None:
        """Set values (g, c·u) of (g,) rows, no row twice."""
        if picks.unit == 0:
            self.rows.index_copy_(0, rows, values)
        elif picks.unit > 1:
            self.wide.view(-1, picks.unit).index_copy_(0, self._at(rows, picks), values.reshape(-1, picks.unit))
        else:
            self.wide.view(-1).index_copy_(0, self._at(rows, picks), values.reshape(-1))

    def add(self, rows: Tensor, picks: Picks, values: Tensor, sign: int) -> None:
        """Add sign·values (g, c·u) to (g,) rows, no row twice: one rounding."""
        if picks.unit == 0:
            self.rows.index_add_(0, rows, values, alpha=sign)
        elif picks.unit > 1:
            self.wide.view(-1, picks.unit).index_add_(
                0, self._at(rows, picks), values.reshape(-1, picks.unit), alpha=sign
            )
        else:
            self.wide.view(-1).index_add_(0, self._at(rows, picks), values.reshape(-1), alpha=sign)

    def _at(self, rows: Tensor, picks: Picks) -> Tensor:
        return (rows[:, None] * (self.wide.shape[1] // picks.unit) + picks.pieces).view(-1)


def table(rows: int, width: int, like: Tensor) -> Table:
    """Zeros, of the dtype and device of `like`. On the CPU memory is taken only when it is written to."""
    shape = (rows, -(-width // BLOCK) * BLOCK)
    if like.device.type == "cpu":
        wide = torch.from_numpy(np.zeros(shape, np.float32 if like.dtype == torch.float32 else np.float64))
    else:
        wide = torch.zeros(shape, dtype=like.dtype, device=like.device)
    return Table(wide, width)


def grown(old: Table, rows: int) -> Table:
    """The same rows, and more."""
    new = table(rows, old.width, old.wide)
    new.wide[: old.wide.shape[0]] = old.wide
    return new


def place(rows: Tensor) -> slice | Tensor:
    """(r,) ascending -> a slice where they follow one another, which copies nothing."""
    if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows) and bool((rows.diff() == 1).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
