"""Models and what the mixing algorithm keeps beside them, as rows that some nodes' functions read and write.

Shapes: N rows, d parameters; "…" whatever the algorithm keeps per node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.api import Mixer

Rows = slice | Tensor
"""Neighbouring rows, read as a view, or an index of any, read as a copy."""


@dataclass(slots=True)
class States:
    """Args:
    mixer: whose.
    x: (N, d), written in place.
    """

    mixer: Mixer
    x: Tensor
    _kind: Any = field(init=False)
    _kept: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        began = self.mixer.start(self.x)
        self._kind = None if began is None else type(began)
        self._kept = {} if began is None else {f.name: getattr(began, f.name).clone() for f in fields(began)}

    def of(self, rows: Rows) -> tuple[Tensor, Any]:
        """Models and state of some rows."""
        if self._kind is None:
            return self.x[rows], None
        return self.x[rows], self._kind(**{name: kept[rows] for name, kept in self._kept.items()})

    def put(self, rows: Rows, before: tuple[Tensor, Any], x: Tensor, state: Any) -> None:
        """Write what became of them.

        Args:
            rows: the same.
            before: what `of` gave.
            x: models.
            state: of the mixer.
        """
        writes = [] if x is before[0] else [(self.x, x)]
        if state is not before[1]:
            writes += [
                (kept, getattr(state, name))
                for name, kept in self._kept.items()
                if getattr(state, name) is not getattr(before[1], name)
            ]
        ours = {kept.untyped_storage().data_ptr() for kept in (self.x, *self._kept.values())}
        if len(writes) > 1:  # one that shows what another write replaces is saved first
            writes = [(kept, new.clone() if new.untyped_storage().data_ptr() in ours else new) for kept, new in writes]
        for kept, new in writes:
            kept[rows] = new

    def join(self, row: int, source: int) -> None:
        """A fresh state for the model of `source`."""
        self.x[row] = self.x[source]
        x, before = self.of(slice(row, row + 1))
        self.put(slice(row, row + 1), (x, before), x, self.mixer.start(x))


def chunks(rows: NDArray[np.int64], most: int) -> Sequence[tuple[NDArray[np.int64], Rows]]:
    """Ascending rows in parts of at most `most`; parts without gaps as slices."""
    parts = [rows[start : start + most] for start in range(0, len(rows), most)]
    return [
        (
            part,
            slice(int(part[0]), int(part[-1]) + 1) if part[-1] - part[0] == len(part) - 1 else torch.from_numpy(part),
        )
        for part in parts
    ]
