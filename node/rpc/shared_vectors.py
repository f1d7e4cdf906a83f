"""The memory that an engine and its owner's script share: vectors in a file without a name, which both map.

Each end writes its own half, and reads that of the other when a message says that it may.

Shapes: d parameters.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from starling.node import platform

_LINE = 64  # bytes


@dataclass(frozen=True, slots=True)
class Half:
    """Vectors that one end writes.

    Attributes:
        x: (d,) parameters.
        mean: (d,) m of what the optimiser remembers; (0,) where it is not exchanged.
        square: (d,) v, likewise.
        correction: (d,) what gradients are corrected by; (0,) where they are not, and in the script's half.
    """

    x: Tensor
    mean: Tensor
    square: Tensor
    correction: Tensor


class SharedVectors:
    """Two halves in one file.

    Attributes:
        script, engine: the halves.
    """

    def __init__(self, file: int, dim: int, dtype: torch.dtype, *, memories: bool, corrects: bool) -> None:
        """Map an open file, which may be closed afterwards. Raises OSError: it is too short, or there is no memory."""
        self._map = mmap.mmap(file, _bytes(dim, dtype, memories, corrects))
        remembered, corrected = dim * memories, dim * corrects
        sizes = (dim, remembered, remembered, 0, dim, remembered, remembered, corrected)
        parts, begin = [], 0
        nothing = torch.empty(0, dtype=dtype, device="cpu")
        for size in sizes:
            part = nothing
            if size:
                part = torch.frombuffer(self._map, dtype=dtype, count=size, offset=begin)
            parts.append(part)
            begin += _aligned(size * dtype.itemsize)
        self.script, self.engine = Half(*parts[:4]), Half(*parts[4:])


def new_file(folder: Path | None, dim: int, dtype: torch.dtype, *, memories: bool, corrects: bool) -> int:
    """Return the descriptor of a new file of the right length: in memory where the system can do that, else in `folder`.

    Raises OSError: there is too little memory.
    """
    file = platform.nameless_file(folder)
    os.ftruncate(file, _bytes(dim, dtype, memories, corrects))
    return file


def _bytes(dim: int, dtype: torch.dtype, memories: bool, corrects: bool) -> int:
    return max(1, _aligned(dim * dtype.itemsize) * (2 + 4 * memories + corrects))


def _aligned(size: int) -> int:
    """Return where the next vector may begin: sums have other last bits at other places within a line of a processor's cache."""
    return -(-size // _LINE) * _LINE
