"""Rows of a table: nodes' models and states, and the coordinates of rows that many exchanges are about, grouped by shape.

Shapes: N rows of a swarm, d parameters; r rows of a table, D numbers of the shared vector; m exchanges, of which g form a group; k values
of each, which change w coordinates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from starling.gossip.api import Mixer, Quantizer
from starling.gossip.compress.support import Blocks, Fragment, Full, Indices, Support
from starling.gossip.vector import finite
from starling.node.simulate.matrix.edges import index

_NUMBERS = 1 << 20
_WORDS = 2**62

Coordinates = Tensor | None  # (g, w) int64, ascending: selected coordinates of each row; None: all


def read(rows: Tensor, at: Tensor, coordinates: Coordinates) -> Tensor:
    """Return values (g, w) of rows `at` (g,), a copy."""
    return rows.index_select(0, at) if coordinates is None else rows.view(-1).take(_flat(rows, at, coordinates))


def write(rows: Tensor, at: Tensor, coordinates: Coordinates, values: Tensor) -> None:
    """Set values (g, w) of rows `at` (g,), no row twice."""
    if coordinates is None:
        rows.index_copy_(0, at, values)
    else:
        rows.view(-1).index_copy_(0, _flat(rows, at, coordinates).view(-1), values.reshape(-1))


def add(rows: Tensor, at: Tensor, coordinates: Coordinates, values: Tensor) -> None:
    """Add values (g, w) to rows `at` (g,)."""
    if coordinates is None:
        rows.index_add_(0, at, values)
    else:
        rows.view(-1).index_add_(0, _flat(rows, at, coordinates).view(-1), values.reshape(-1))


def _flat(rows: Tensor, at: Tensor, coordinates: Tensor) -> Tensor:
    return at[:, None] * rows.shape[1] + coordinates


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Exchanges whose supports have one shape."""

    which: NDArray[np.int64]  # (g,) their places among all exchanges
    supports: tuple[Support, ...]
    coordinates: Coordinates
    dim: int  # D
    coefficients: bool  # values are not those of the coordinates, but coefficients of the support

    def of(self, places: NDArray[np.int64]) -> "Group":
        """Return the members of the group at `places`."""
        if len(places) == len(self.which):
            return self
        coordinates = self.coordinates if self.coordinates is None else self.coordinates[index(places, self.coordinates)]
        return replace(self, which=self.which[places], supports=tuple(self.supports[at] for at in places), coordinates=coordinates)

    def take(self, rows: Tensor, at: Tensor) -> Tensor:
        """Return values (g, k) of rows `at` (g,)."""
        if not self.coefficients:
            return read(rows, at, self.coordinates)
        return torch.stack([support.take(rows[row]) for support, row in zip(self.supports, at, strict=True)])

    def spread(self, values: Tensor) -> Tensor:
        """Map values (g, k) to (g, w), the changes of the coordinates."""
        if not self.coefficients:
            return values
        return torch.stack([s.spread(row, self.dim) for s, row in zip(self.supports, values, strict=True)])


def grouped(supports: Sequence[Support], dim: int, like: Tensor) -> Iterator[Group]:
    """Supports (m) of vectors (dim,), in groups of at most a million numbers on the device of `like`."""
    kinds: dict[tuple[bool, int, int], list[tuple[int, Tensor]]] = {}
    for place, support in enumerate(supports):
        moved = support.index(dim)
        if isinstance(support, Fragment):
            moved = torch.arange(dim)[moved]
        coordinates = torch.empty(0, dtype=torch.int64) if isinstance(moved, slice) else moved
        coefficients = not isinstance(support, Full | Blocks | Fragment | Indices)
        count = support.size(dim) if coefficients or isinstance(moved, slice) else len(coordinates)
        kinds.setdefault((coefficients, count, len(coordinates)), []).append((place, coordinates))
    for (coefficients, _count, width), members in kinds.items():
        step = max(1, _NUMBERS // (width or dim))
        for start in range(0, len(members), step):
            places, parts = zip(*members[start : start + step], strict=True)
            stacked = torch.stack(parts).to(like.device) if width else None
            yield Group(np.asarray(places), tuple(supports[place] for place in places), stacked, dim, coefficients)


@runtime_checkable
class Through(Protocol):
    """A quantizer that rounds many rows at once."""

    def draws(self, count: int) -> int:
        """Return the number of random words that `encode` draws for `count` values."""
        ...

    def through(self, values: Tensor, chance: Tensor) -> Tensor:
        """Map (…, k) and words (…, draws(k)) to decode(encode(row)) of each row. Raises ValueError("not_finite")."""
        ...


def through(quantizer: Quantizer, values: Tensor, generators: Sequence[Generator]) -> Tensor:
    """Map values (g, k) to decode(encode(row)), each with its own generator. Raises ValueError: "not_finite"."""
    if isinstance(quantizer, Through):
        drawn = torch.empty((len(values), quantizer.draws(values.shape[1])), dtype=torch.int64)
        for row, generator in zip(drawn if drawn.numel() else (), generators, strict=False):
            torch.randint(_WORDS, row.shape, generator=generator, out=row)
        arrived = quantizer.through(values, drawn.to(values.device))
    else:
        coded = (quantizer.encode(row, generator) for row, generator in zip(values.cpu(), generators, strict=True))
        arrived = torch.stack([quantizer.decode(data, values.shape[1]) for data in coded]).to(values.device)
    arrived = arrived.to(values.dtype)
    check_finite(arrived)
    return arrived


def check_finite(values: Tensor) -> None:
    """Raises ValueError("not_finite") unless all are."""
    if not finite(values):
        raise ValueError("not_finite")


Rows = slice | Tensor  # adjacent rows, read as a view, or an index of any, read as a copy


def adjacent(rows: Tensor) -> Rows:
    """Map (r,) to a slice if the rows are contiguous."""
    if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows) and bool((rows.diff() == 1).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


@dataclass(slots=True)
class States:
    """Models, and the mixing algorithm's state per node."""

    mixer: Mixer
    x: Tensor  # (N, d), written in place
    _kind: Any = field(init=False)
    _kept: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        initial = self.mixer.start(self.x)
        self._kind = None if initial is None else type(initial)
        self._kept = {} if initial is None else {f.name: getattr(initial, f.name).clone() for f in fields(initial)}

    def of(self, rows: Rows) -> tuple[Tensor, Any]:
        """Return models and state of some rows."""
        kept = {name: kept[rows] for name, kept in self._kept.items()}
        return self.x[rows], None if self._kind is None else self._kind(**kept)

    def put(self, rows: Rows, before: tuple[Tensor, Any], x: Tensor, state: Any) -> None:
        """Write models and states of rows, but for the parts that are those of `before`, as `of` gave it."""
        writes = [] if x is before[0] else [(self.x, x)]
        for name, kept in self._kept.items():
            if getattr(state, name) is not getattr(before[1], name):
                writes.append((kept, getattr(state, name)))
        if len(writes) > 1:  # one may be a view of memory that another write replaces
            writes = [(kept, new.clone()) for kept, new in writes]
        for kept, new in writes:
            kept[rows] = new

    def join(self, row: int, model: Tensor) -> None:
        """A model (d,) and a fresh state for it."""
        self.x[row] = model
        at = slice(row, row + 1)
        before = x, _ = self.of(at)
        self.put(at, before, x, self.mixer.start(x))
