"""Supports: the part of a flat vector that an exchange is about. Coordinates are in ascending order, each at most once.

Indices live on the CPU, wherever the vector is: torch takes them for a vector on any device.

Shapes: d parameters, k kept coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from starling.gossip.compress import indices as coding
from starling.gossip.compress.buffers import empty
from starling.gossip.compress.header import BLOCK, BLOCKS, FRAGMENT, LISTING, Kind
from starling.gossip.compress.places import Listed, Places, Rows, Stretch
from starling.gossip.lazy_torch import Tensor, torch

Data = TypeVar("Data", bytes, memoryview)
MAX_PARTS = 2**16 - 1


class Support:
    """The subspace of an exchange: k numbers that represent a vector, and how to add that vector.

    Here: coordinates. Beside these `gossip.compress.select.low_rank.Factors` and `gossip.compress.select.dct.Atoms`,
    whose numbers are coefficients.
    """

    __slots__ = ()
    kind: ClassVar[Kind]  # its kind in a request's header

    def describe(self, dim: int) -> bytes:
        """Bytes between a request's header and its values."""
        return b""

    def take(self, x: Tensor) -> Tensor:
        """Map (d,) -> (k,), a copy: the part of x in the subspace."""
        raise NotImplementedError

    def view(self, x: Tensor) -> Tensor:
        """As `take`, but perhaps a view."""
        return self.take(x)

    def size(self, dim: int) -> int:
        """k, the length of the values for a vector of `dim`."""
        raise NotImplementedError

    def ratio(self, dim: int) -> float:
        """Return k/d, in (0, 1]."""
        return self.size(dim) / dim

    def index(self, dim: int) -> slice | Tensor:
        """Coordinates of a (dim,) vector that may change."""
        return slice(None)

    def everywhere(self, dim: int) -> Places:
        """Return the same coordinates, in order."""
        index = self.index(dim)
        assert isinstance(index, slice), "who lists coordinates says how they are reached"
        return Stretch(slice(0, len(range(*index.indices(dim)))), index)

    def places(self, dim: int, most: int) -> Iterator[Places]:
        """Return the same, at most `most` of them, or one block, at a time."""
        return self.everywhere(dim).cut(most)

    def read(self, x: Tensor) -> Tensor:
        """Return x (d,) at `index`, possibly a view."""
        return self.everywhere(x.numel()).read(x)

    def find(self, places: Tensor, dim: int) -> tuple[Tensor, Tensor] | None:
        """Return which (n,) of coordinates (s,), ascending, are in the support, and their positions (n,) among its values.

        None: its values are not those of coordinates.
        """
        return None

    def spread(self, values: Tensor, dim: int) -> Tensor:
        """Change of a (dim,) vector, at `index`, by `values` (k,). Odd to the bit: −values change it by just the opposite."""
        return values

    def add(self, x: Tensor, values: Tensor) -> Tensor:
        """X (d,) plus the vector that `values` (k,) represent -> a new (d,)."""
        return x + self.spread(values, x.numel())

    def onto(self, x: Tensor, values: Tensor) -> Tensor:
        """Return the same, perhaps in the memory of the values."""
        return self.add(x, values)

    def put(self, x: Tensor, values: Tensor) -> Tensor:
        """X (d,) with its part in the subspace replaced by the one that `values` (k,) represent -> a new (d,)."""
        return self.add(x, values - self.take(x))


@dataclass(frozen=True, slots=True)
class Full(Support):
    """All coordinates."""

    kind: ClassVar[Kind] = Kind.FULL

    def take(self, x: Tensor) -> Tensor:
        """Map (d,) to (d,), a copy."""
        return empty(x.numel(), x.device, x.dtype).copy_(x)

    def view(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def onto(self, x: Tensor, values: Tensor) -> Tensor:
        """Add x (d,) to the values, in place."""
        return values.add_(x)

    def size(self, dim: int) -> int:
        """Return d."""
        return dim

    def find(self, places: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Return all of them, at themselves."""
        return torch.arange(places.numel()), places


@dataclass(frozen=True, slots=True)
class Blocks(Support):
    """A seeded mask: `count` consecutive blocks, from `start` and wrapping, of a permutation of all blocks.

    No index crosses the wire. Where each exchange starts at the block after the last one's, every coordinate is visited once
    before any is visited twice: less variance than a fresh draw, for the same bytes.
    """

    seed: int  # seed of the permutation, 0 <= seed < 2**64
    start: int  # position in the permutation, 0 <= start < number of blocks
    count: int  # blocks in the support, 1 <= count <= number of blocks
    block: int = BLOCK  # coordinates in a block, >= 1; the vector's last block may be shorter
    kind: ClassVar[Kind] = Kind.BLOCKS

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be in [0, 2**64), got {self.seed}")
        if self.start < 0 or self.count < 1 or self.block < 1:
            raise ValueError(f"need start >= 0, count >= 1, block >= 1, got {self.start}, {self.count}, {self.block}")

    def describe(self, dim: int) -> bytes:
        """Return its fields."""
        return BLOCKS.pack(self.seed, self.start, self.count, self.block)

    def take(self, x: Tensor) -> Tensor:
        """Map (d,) to (k,), a copy."""
        return self.read(x)

    def size(self, dim: int) -> int:
        """Return k: the last block may be short."""
        blocks = blocks_in(dim, self.block)
        missing = blocks * self.block - dim
        return self.count * self.block - (missing if missing and (self._some(blocks) == blocks - 1).any() else 0)

    def index(self, dim: int) -> Tensor:
        """Return (k,) int64, on the CPU, ascending. Raises ValueError: a vector of `dim` coordinates has too few blocks."""
        index = (self._rows(dim)[:, None] * self.block + torch.arange(self.block)).view(-1)
        return index[: self.size(dim)]  # ascending: the missing part of a short last block is at the end

    def everywhere(self, dim: int) -> Rows:
        """Return rows of the vector cut into blocks."""
        numbers, size = self._rows(dim), self.size(dim)
        return Rows(slice(0, size), numbers[: size // self.block], self.block, size % self.block)

    def find(self, places: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Return those in its blocks."""
        which, rows = _listed(self._rows(dim), places // self.block)
        return which, rows * self.block + places[which] % self.block

    def add(self, x: Tensor, values: Tensor) -> Tensor:
        """X (d,) with the values (k,) added at the blocks -> a new (d,)."""
        return _added(self, x, values)

    def _rows(self, dim: int) -> Tensor:
        """Return (count,) int64, on the CPU: the block numbers, ascending."""
        return torch.from_numpy(np.sort(self._some(blocks_in(dim, self.block))))

    def _some(self, blocks: int) -> npt.NDArray[np.int64]:
        """Return (count,), the block numbers, in the permutation's order."""
        if self.start >= blocks or self.count > blocks:
            raise ValueError(f"start {self.start} and count {self.count} do not fit {blocks} blocks")
        order, end = permutation(self.seed, blocks), self.start + self.count
        return order[self.start : end] if end <= blocks else np.concatenate((order[self.start :], order[: end - blocks]))


@dataclass(frozen=True, slots=True)
class Fragment(Support):
    """One of `parts` contiguous ranges of nearly equal length: part p is [⌊p·d/parts⌋, ⌊(p + 1)·d/parts⌋).

    A slice: no index, no permutation, and what is taken of a vector is copied once.
    """

    part: int  # 0 <= part < parts
    parts: int  # number of parts, in [2, 65535], at most d
    kind: ClassVar[Kind] = Kind.FRAGMENT

    def __post_init__(self) -> None:
        if not (2 <= self.parts <= MAX_PARTS and 0 <= self.part < self.parts):
            raise ValueError(f"need 2 <= parts <= {MAX_PARTS} and 0 <= part < parts, got {self.part} of {self.parts}")

    def describe(self, dim: int) -> bytes:
        """Return its fields."""
        return FRAGMENT.pack(self.part, self.parts)

    def take(self, x: Tensor) -> Tensor:
        """Map (d,) to (k,), a copy."""
        return Full().take(x[self.index(x.numel())])

    def size(self, dim: int) -> int:
        """Return k, ⌊d/parts⌋ or one more."""
        return len(range(*self.index(dim).indices(dim)))

    def index(self, dim: int) -> slice:
        """Return the range. Raises ValueError: a vector of `dim` coordinates has fewer than `parts`."""
        if self.parts > dim:
            raise ValueError(f"{dim} coordinates do not make {self.parts} parts")
        return slice(self.part * dim // self.parts, (self.part + 1) * dim // self.parts)

    def find(self, places: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Return those in the range."""
        index = self.index(dim)
        first, last = torch.searchsorted(places, torch.tensor([index.start, index.stop])).tolist()
        return torch.arange(first, last), places[first:last] - index.start

    def add(self, x: Tensor, values: Tensor) -> Tensor:
        """Add the values (k,) to the range of x (d,); return a new (d,)."""
        return _added(self, x, values)

    @classmethod
    def parse(cls, data: Data, dim: int, agreed: int) -> tuple[Fragment, Data]:
        """Return a support in (dim,) from a peer's bytes, and what follows it. `agreed` is how many parts there are.

        Raises ValueError: bad_length, bad_support.
        """
        if len(data) < FRAGMENT.size:
            raise ValueError("bad_length")
        part, parts = FRAGMENT.unpack_from(data)
        if parts != agreed or not part < parts <= dim:
            raise ValueError("bad_support")
        return cls(part, parts), data[FRAGMENT.size :]


@dataclass(frozen=True, slots=True, eq=False)
class Indices(Support):
    """Listed coordinates."""

    indices: Tensor  # (k,) int64 on the CPU, k >= 1, not negative, strictly increasing
    kind: ClassVar[Kind] = Kind.INDICES

    def __post_init__(self) -> None:
        indices = self.indices
        if indices.dim() != 1 or indices.dtype != torch.int64 or indices.numel() == 0:
            raise ValueError(f"indices must be (k,) int64 with k >= 1, got {tuple(indices.shape)} {indices.dtype}")
        if int(indices[0]) < 0 or not bool((indices[1:] > indices[:-1]).all()):
            raise ValueError("indices must be >= 0 and strictly increasing")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Indices) and torch.equal(self.indices, other.indices)

    __hash__ = None  # type: ignore[assignment]

    def describe(self, dim: int) -> bytes:
        """Return a listing."""
        coded = coding.encode(self.indices.numpy(), dim)
        return LISTING.pack(self.size(dim), len(coded)) + coded

    def take(self, x: Tensor) -> Tensor:
        """Map (d,) to (k,), a copy."""
        return self.read(x)

    def size(self, dim: int) -> int:
        """Return k."""
        return self.indices.numel()

    def index(self, dim: int) -> Tensor:
        """Return (k,) int64, ascending."""
        return self.indices

    def everywhere(self, dim: int) -> Listed:
        """Return the indices."""
        return Listed(slice(0, self.size(dim)), self.indices)

    def find(self, places: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Return those that are listed."""
        return _listed(self.indices, places)

    def add(self, x: Tensor, values: Tensor) -> Tensor:
        """X (d,) with the values (k,) added at the indices -> a new (d,)."""
        return _added(self, x, values)


def _added(support: Support, x: Tensor, values: Tensor) -> Tensor:
    """X (d,) with values (k,) added to the coordinates of a support that they are of -> a new (d,)."""
    added, every = Full().take(x), support.everywhere(x.numel())
    every.write(added, every.read(added) + values)
    return added


def _listed(numbers: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return which (n,) of `places` (s,) are among ascending `numbers`, and where (n,)."""
    at = torch.searchsorted(numbers, places).clamp_(max=numbers.numel() - 1)
    which = (numbers[at] == places).nonzero().view(-1)
    return which, at[which]


def blocks_in(dim: int, block: int = BLOCK) -> int:
    """Return the number of blocks of a (dim,) vector."""
    return -(-dim // block)


def most_blocks(dim: int) -> int:
    """Return the largest number of blocks in a payload of a (dim,) vector; the receiver has to sort a permutation of them."""
    return max(1 << 16, blocks_in(dim))  # so that small vectors may be cut finer than BLOCK


@lru_cache(maxsize=16)  # a node visits its few edges in turn; 16 bound the memory at 16/block int64 vectors
def permutation(seed: int, blocks: int) -> npt.NDArray[np.int64]:
    """Return (blocks,) read-only: a stable sort of raw Philox words, which numpy promises never to change.

    By torch, whose stable sort takes a third of the time of numpy's and sorts signed numbers.
    """
    words = np.random.Philox(key=seed).random_raw(blocks) ^ np.uint64(1 << 63)
    order: npt.NDArray[np.int64] = torch.from_numpy(words.view(np.int64)).sort(stable=True).indices.numpy()
    order.flags.writeable = False
    return order
