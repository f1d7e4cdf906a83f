"""What each end of each edge remembers on its own, as rows of one table.

Shapes: E numbers kept per end of an edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from starling.node.simulate.matrix.edges import Pair
from starling.node.simulate.matrix.sampler import indices
from starling.node.simulate.matrix.table import Table, grown, table

_FIRST_SLOTS = 64
End = tuple[int, int]
"""(me, peer): rows."""


@dataclass(slots=True)
class Memory:
    """Args:
    origin: (E,) what a new edge remembers.
    """

    origin: Tensor
    table: Table = field(init=False)
    """(slots, E)."""
    _slots: dict[End, int] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = table(0, self.origin.numel(), self.origin)

    def of(self, end: End) -> Tensor | None:
        """(E,) a view, None for a new edge."""
        slot = self._slots.get(end)
        return None if slot is None else self.table.rows[slot]

    def slots(self, ends: Sequence[End]) -> Tensor:
        """Rows of `table`; new ones where there was nothing."""
        for end in ends:
            if end not in self._slots:
                if not self._free:
                    used = self.table.wide.shape[0]
                    self.table = grown(self.table, max(_FIRST_SLOTS, 2 * used))
                    self._free = list(range(self.table.wide.shape[0] - 1, used - 1, -1))
                slot = self._slots[end] = self._free.pop()
                self.table.wide[slot] = 0.0
                self.table.rows[slot] = self.origin
        return indices([self._slots[end] for end in ends], self.origin)

    def read(self, ends: Sequence[End]) -> tuple[Tensor, Tensor]:
        """Rows of `table`, and what they hold (…, E), a copy."""
        slots = self.slots(ends)
        return slots, self.table.rows[slots]

    def void(self, pair: Pair) -> None:
        """Both ends forget."""
        for end in (pair, pair[::-1]):
            slot = self._slots.pop(end, None)
            if slot is not None:
                self._free.append(slot)
