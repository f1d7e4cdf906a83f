"""Rows as a slice where they can be one."""

from __future__ import annotations

from torch import Tensor


def place(rows: Tensor) -> slice | Tensor:
    """(r,) ascending -> a slice where they follow one another, which copies nothing."""
    if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows) and bool((rows.diff() == 1).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
