"""Supports of many exchanges, put together by their shape, so that each group is one piece of arithmetic.

Shapes: m exchanges, of which g make a group; D numbers of a vector; k of an exchange, held by c pieces of u numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.compress.support import Blocks, Full, Indices, Support, blocks_in, permutation
from starling.node.simulate.matrix.edges import Life
from starling.node.simulate.matrix.sampler import indices
from starling.node.simulate.matrix.table import Picks, Table

_NUMBERS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Exchanges whose supports have one shape.

    Args:
        which: (g,) their places among all exchanges.
        supports: of each.
        picks: the coordinates that they move.
        along: supports are more than coordinates: what they take are coefficients.
        count: k.
        dim: D.
    """

    which: NDArray[np.int64]
    supports: tuple[Support, ...]
    picks: Picks
    along: bool
    count: int
    dim: int

    def __len__(self) -> int:
        """How many exchanges."""
        return len(self.which)

    def of(self, places: NDArray[np.int64]) -> Group:
        """Some of them."""
        if places.size == len(self):
            return self
        picks = self.picks.of(indices(places, self.picks.pieces))
        return Group(
            self.which[places], tuple(self.supports[at] for at in places), picks, self.along, self.count, self.dim
        )  # fmt: skip

    def take(self, table: Table, rows: Tensor) -> Tensor:
        """(g,) rows -> (g, k): what each exchange is about."""
        if self.along:
            return torch.stack(
                [support.take(table.rows[row]) for support, row in zip(self.supports, rows, strict=True)]
            )
        return table.gather(rows, self.picks)[:, : self.count]

    def spread(self, values: Tensor) -> Tensor:
        """(g, k) -> what they change at `picks`, as wide as those."""
        if self.along:
            return torch.stack([s.spread(row, self.dim) for s, row in zip(self.supports, values, strict=True)])
        return self.picks.pad(values)


def grouped(supports: Sequence[Support], lives: Sequence[Life], table: Table) -> Iterator[Group]:
    """Groups of at most a million numbers, each in the order of the exchanges.

    Args:
        supports: (m).
        lives: (m) of the edges they are for.
        table: of vectors like those that they are about.
    """
    dim, device = table.width, table.wide.device
    kinds: dict[tuple[bool, int, int, int], tuple[list[int], list[NDArray[np.int64]]]] = {}
    for place, (support, life) in enumerate(zip(supports, lives, strict=True)):
        along, unit, pieces, count = _pieces(support, life, table)
        places, held = kinds.setdefault((along, unit, len(pieces), count), ([], []))
        places.append(place)
        held.append(pieces)
    for (along, unit, many, count), (places, held) in kinds.items():
        step = max(1, _NUMBERS // (many * unit if unit else dim))
        moves = many * unit if along and unit else dim if along else count
        for start in range(0, len(places), step):
            part = places[start : start + step]
            pieces = np.stack(held[start : start + step]) if unit else np.empty(0, np.int64)
            picks = Picks(unit, torch.from_numpy(pieces).to(device), moves)
            yield Group(np.asarray(part), tuple(supports[place] for place in part), picks, along, count, dim)


def _pieces(support: Support, life: Life, table: Table) -> tuple[bool, int, NDArray[np.int64], int]:
    """Whether it is more than coordinates, unit, pieces (c,) ascending, and k."""
    dim = table.width
    none = np.empty(0, np.int64)
    match support:
        case Full():
            return False, 0, none, dim
        case Blocks(seed, start, count, block) if table.wide.shape[1] % block == 0:
            blocks = blocks_in(dim, block)
            if start >= blocks or count > blocks:
                raise ValueError(f"start {start} and count {count} do not fit {blocks} blocks")
            if seed != life.seed:
                order = permutation(seed, blocks)
            elif life.order is None or life.order.size != blocks:
                order = life.order = permutation(seed, blocks)
            else:
                order = life.order
            chosen = np.sort(np.take(order, np.arange(start, start + count), mode="wrap"))
            missing = blocks * block - dim if chosen[-1] == blocks - 1 else 0
            return False, block, chosen, count * block - missing
        case Blocks() | Indices():
            index = support.index(dim)
            return False, 1, index.numpy(), index.numel()
        case _:
            moved = support.index(dim)
            pieces, unit = (none, 0) if isinstance(moved, slice) else (moved.numpy(), 1)
            return True, unit, pieces, support.size(dim)
