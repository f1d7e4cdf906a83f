"""Cosine atoms: the largest coefficients of an orthonormal DCT-II of each chunk of the flat vector.

`take` transforms and picks coefficients, `add` adds the vector they represent. The tables of cosines are rounded to multiples of 2⁻²⁴,
the same in every mathematical library, and `add` is made of separate multiplications and additions in one order, so both ends of an
exchange move by the same bits with opposite signs, on any device. The rounding leaves the tables orthonormal to 1e-6.

A vector of d parameters has d coefficients: number c·chunk + f is frequency f of chunk c. A last chunk that is short has a short transform.

Shapes: d parameters, k coefficients, N chunk size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, TypeVar

from msgspec import Meta

from starling.gossip.bounds import parameters
from starling.gossip.compress import indices as coding
from starling.gossip.compress.header import ATOMS, LISTING, Kind
from starling.gossip.compress.select.approximate import largest_of_chunks, least_share
from starling.gossip.compress.select.coordinates import TopK
from starling.gossip.compress.support import Full, Indices, Support
from starling.gossip.lazy_torch import Tensor, torch

Data = TypeVar("Data", bytes, memoryview)
MAX_CHUNK = 1024  # the table for it takes 8·N² bytes
_GRID = 2.0**24
_SKEW = 2.0**-16  # bound of how far the rounded tables are from orthonormal


def dct(x: Tensor, chunk: int) -> Tensor:
    """Return the coefficients (d,) of x (d,), chunk by chunk."""
    end = x.numel() - x.numel() % chunk
    parts = (part for part in (x[:end].view(-1, chunk), x[end:].view(1, -1)) if part.numel())
    return torch.cat([(rows @ _table(rows.shape[1]).to(x).mT).reshape(-1) for rows in parts])


@dataclass(frozen=True, slots=True)
class Atoms(Support):
    """Some of the cosines into which the chunks of a vector are decomposed."""

    chunk: int  # N, in [2, 1024]
    chosen: Indices  # which coefficients
    kind: ClassVar[Kind] = Kind.ATOMS

    def __post_init__(self) -> None:
        if not 2 <= self.chunk <= MAX_CHUNK:
            raise ValueError(f"chunk must be in [2, {MAX_CHUNK}], got {self.chunk}")

    def take(self, x: Tensor) -> Tensor:
        """Map (d,) to (k,): the chosen coefficients."""
        return self.chosen.take(dct(x, self.chunk))

    def spread(self, values: Tensor, dim: int) -> Tensor:
        """Coefficients (k,) -> the vector (dim,) they represent, the same bits on every machine.

        Of each chunk the lowest chosen frequency is added first, in one sweep over all chunks, then the next one.
        """
        chunks, frequencies = self.chosen.indices // self.chunk, self.chosen.indices % self.chunk
        sweep = torch.arange(chunks.numel()) - torch.searchsorted(chunks, chunks)
        order = sweep.argsort(stable=True)
        whole, short = (_table(size).to(values) for size in (self.chunk, dim % self.chunk))
        spread = values.new_zeros(-(-dim // self.chunk), self.chunk)
        for picked in torch.split(order, sweep.bincount().tolist()):
            rows, at = chunks[picked], frequencies[picked]
            atoms = whole[at]
            if int(rows[-1]) == dim // self.chunk:  # the short last chunk: a sweep goes through the chunks in order
                atoms[-1] = torch.nn.functional.pad(short[at[-1]], (0, self.chunk - dim % self.chunk))
            spread[rows] += values[picked][:, None] * atoms
        return spread.view(-1)[:dim]

    def size(self, dim: int) -> int:
        """Return the number of coefficients, k, in a vector of `dim`."""
        return self.chosen.size(dim)

    def describe(self, dim: int) -> bytes:
        """Chunk size, and the coded indices of the coefficients."""
        return ATOMS.pack(self.chunk) + self.chosen.describe(dim)

    @classmethod
    def parse(cls, data: Data, dim: int, agreed: int) -> tuple[Atoms, Data]:
        """Return a support in (dim,) from a peer's bytes, and what follows it. `agreed` is the chunk: a peer cannot choose tables of
        cosines.

        Raises ValueError: bad_length, bad_support, bad_indices.
        """
        start = ATOMS.size + LISTING.size
        if len(data) < start:
            raise ValueError("bad_length")
        (chunk,), (count, length) = ATOMS.unpack_from(data), LISTING.unpack_from(data, ATOMS.size)
        coded, rest = bytes(data[start : start + length]), data[start + length :]
        if chunk != agreed or not 1 <= count < dim:
            raise ValueError("bad_support")
        if len(coded) != length:
            raise ValueError("bad_length")
        return cls(chunk, Indices(torch.from_numpy(coding.decode(coded, count, dim)))), rest


@parameters
class DctTopK(TopK):
    """DeMo's choice: the largest cosine coefficients, of equal ones the lowest.

    The transform keeps lengths, so it contracts like top-k of as many coordinates, and better where a vector is smooth along its order.

    Source: Peng, Quesnelle and Kingma 2024 (arXiv:2411.19870). Deviation: chunks are stretches of
    the flat vector, not tiles of its matrices.

    Args:
        ratio: share of the coefficients, in (0, 1], rounded up.
        chunk: N, in [2, 1024].
        per_chunk: that share of each chunk; else of the whole vector, so that some chunks send more than others.
    """

    chunk: Annotated[int, Meta(ge=2, le=1024)] = 64
    per_chunk: bool = True

    def contraction(self, dim: int) -> float:
        """δ = k/d, of the chunk that has least if they are taken one by one, less the tables' rounding."""
        return least_share(self.ratio, self.chunk if self.per_chunk else dim, dim) - _SKEW

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Atoms | Full:
        """x, reference: (d,) finite -> the largest coefficients of x, or of its change since the reference."""
        dim, coefficients = x.numel(), dct(x if reference is None else x - reference, self.chunk)
        chosen = largest_of_chunks(coefficients, self.chunk if self.per_chunk else dim, self.ratio).cpu()
        return Full() if len(chosen) == dim else Atoms(self.chunk, Indices(chosen))


@lru_cache(maxsize=4)
def _table(size: int) -> Tensor:
    """Return (N, N) float64, on the CPU: row f is the cosine of frequency f. Not to be modified.

    One rounded cosine for each of the 4N angles that occur, from the C library: numpy's own differ between processors by more.
    """
    angles = torch.tensor([math.cos(math.pi * angle / (2 * size)) for angle in range(4 * size)], dtype=torch.float64)
    frequency, place = torch.arange(size)[:, None], torch.arange(size)
    table = angles[(2 * place + 1) * frequency % max(4 * size, 1)] * math.sqrt(2.0 / max(size, 1))
    table[:1] = math.sqrt(1.0 / max(size, 1))
    return (table * _GRID).round() / _GRID
