"""The vectors that a rule combines, read block by block.

A rule asks for order statistics of every coordinate, or for the Gram matrix of the differences to our own vector and then for one weighted
sum. Both pass over blocks that stay in cache, so that beyond inputs and result memory is bounded by a few blocks, for any d.
Pre-aggregation is linear: a small matrix, and no mixed vector is stored.

An absent vector counts as our own (difference 0). Products are summed in the vectors' type over CHUNK coordinates, and over chunks in
float64; where that overflows, which only Byzantine vectors can cause, all is repeated in float64. Differences are cut at ±1e140 per
coordinate in float64, and at ±1e17 in float32 where they are mixed: honest vectors are not that far. All chunks have one size and are
multiplied row by row in memory of their own, as libraries round differently for other shapes and alignments: so the result is the same
to the bit for any block size and any number of rows.

Shapes: R rows (nodes), k peers, m = k + 1 vectors of which the first is our own, p vectors after mixing, D numbers each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from starling.gossip.lazy_torch import Tensor, torch
from starling.robust.rules.sorting_network import Network

BLOCK = 1 << 15  # coordinates at a time: 17 vectors of this many float32 fit in the second-level cache of a core
CHUNK = 1 << 14  # coordinates of one partial sum


@dataclass(frozen=True, slots=True)
class Stack:
    """Own and received vectors, mixed if given a matrix."""

    own: Tensor  # (R, D)
    received: Tensor  # (R, k, D)
    present: Tensor  # (R, k) bool
    mixing: Tensor | None = None  # (R, p, m) float64, rows sum to 1; None: no mixing
    block: int = BLOCK  # coordinates at a time, a multiple of CHUNK

    @property
    def count(self) -> int:
        """Number of vectors, our own included: p, or m without mixing."""
        return self.received.shape[1] + 1 if self.mixing is None else self.mixing.shape[1]

    @property
    def counted(self) -> Tensor:
        """(R, p − 1) bool: vectors of present peers; true for all mixed vectors."""
        if self.mixing is None:
            return self.present
        return self.present.new_ones((self.own.shape[0], self.count - 1))

    def mixed(self, mixing: Tensor) -> Stack:
        """Return the vectors mixed by (R, q, p), whose rows sum to 1."""
        return replace(self, mixing=mixing if self.mixing is None else _product(mixing, self.mixing))

    def only(self, rows: Tensor) -> Stack:
        """Return the stack of some rows, int64 in ascending order."""
        if len(rows) == len(self.own):
            return self
        mixing = None if self.mixing is None else self.mixing[rows]
        return replace(self, own=self.own[rows], received=self.received[rows], present=self.present[rows], mixing=mixing)

    def gram(self, extra: Tensor | None = None) -> Tensor:
        """Return (R, p, p) float64, products of the differences to the first vector, whose row and column are 0; with one `extra` (R, D)
        as the last, p + 1.
        """
        gram = self._gram(extra)
        if self.mixing is None:
            return gram
        mixing = _extended(self.mixing, extra)
        moved = mixing - mixing[:, :1]
        mixed = _product(_product(moved, gram), moved.mT)
        return (mixed + mixed.mT) / 2  # symmetric to the bit, for ties

    def squares(self) -> Tensor:
        """Return (R, p − 1) float64, squared distances from the first vector to the others."""
        if self.mixing is not None:
            return self.gram().diagonal(dim1=1, dim2=2)[:, 1:].clamp_min(0)
        total = torch.zeros(self.present.shape, dtype=torch.float64, device=self.own.device)
        for row in range(len(total)):
            total[row] = self._squares(row, wide=False)
            if not bool(torch.isfinite(total[row]).all()):
                total[row] = self._squares(row, wide=True)
        return total

    def combination(self, weights: Tensor, extra: Tensor | None = None) -> Tensor:
        """Return (R, D), the sum weighted by (R, p) float64 that sum to 1; (R, p + 1) with an extra vector (R, D)."""
        if self.mixing is not None:
            weights = _product(weights.unsqueeze(1), _extended(self.mixing, extra)).squeeze(1)
        combined = torch.empty_like(self.own, memory_format=torch.contiguous_format)
        for row in range(len(combined)):
            self._combine(row, weights[row, 1:], extra, combined[row], wide=False)
            if not bool(torch.isfinite(combined[row].sum())):
                self._combine(row, weights[row, 1:], extra, combined[row], wide=True)
        return combined

    def coordinates(self, network: Network, finish: Callable[[Sequence[Tensor], Tensor], None]) -> Tensor:
        """Return (R, D), a function of the p sorted values of each coordinate: `finish` takes rows (those that the network computes) and
        the output to write.
        """
        reduced = torch.empty_like(self.own, memory_format=torch.contiguous_format)
        scratch = self.own.new_empty((network.scratch, self._largest()))
        for rows, columns, values in self._blocks():
            part = reduced[rows, columns]
            registers = [register[: part.numel()].view(part.shape) for register in scratch]
            finish(network.sort(values, registers), part)
        return reduced

    def vectors(self) -> Tensor:
        """Return (R, p, D), all vectors, in memory."""
        stored = self.own.new_empty((self.own.shape[0], self.count, self.own.shape[1]))
        for rows, columns, values in self._blocks(stored):
            if self.mixing is None:
                for index, value in enumerate(values):
                    stored[rows, index, columns] = value
        return stored

    def _gram(self, extra: Tensor | None) -> Tensor:
        rows, count = self.own.shape[0], self.received.shape[1] + (extra is not None)
        gram = torch.zeros((rows, count + 1, count + 1), dtype=torch.float64, device=self.own.device)
        padded = count if count <= 8 else -8 * (-count // 8)  # rows of zeros: MKL is twice as fast with 16 as with 15
        for row in range(rows):
            total = self._products(row, extra, padded, wide=False)
            if not bool(torch.isfinite(total).all()):
                total = self._products(row, extra, padded, wide=True)
            gram[row, 1:, 1:] = (total + total.T)[:count, :count] / 2
        return gram

    def _products(self, row: int, extra: Tensor | None, padded: int, *, wide: bool) -> Tensor:
        total = torch.zeros((padded, padded), dtype=torch.float64, device=self.own.device)
        for _, part in self._differences(row, extra, padded, wide=wide):
            total.add_(torch.mm(part, part.T))
        return total

    def _squares(self, row: int, *, wide: bool) -> Tensor:
        total = torch.zeros(self.present.shape[1], dtype=torch.float64, device=self.own.device)
        for _, part in self._differences(row, wide=wide):
            total += torch.linalg.vector_norm(part, dim=1).double().square_()
        return total

    def _combine(self, row: int, weights: Tensor, extra: Tensor | None, out: Tensor, *, wide: bool) -> None:
        dtype = torch.float64 if wide else self.own.dtype
        among = slice(0, self.received.shape[1])
        if extra is None:  # leading and trailing weights of 0 need no reading
            used = weights.nonzero().flatten().tolist() or [0]
            among = slice(used[0], used[-1] + 1)
            weights = weights[among]
        others = weights.to(dtype, copy=True)
        moves = self.own.new_empty(min(CHUNK, out.numel()), dtype=dtype)
        differences = self._differences(row, extra, among=among, wide=wide)
        for (_, part), own_part, target in zip(differences, torch.split(self.own[row], CHUNK), torch.split(out, CHUNK), strict=True):
            moved = torch.mv(part.T, others, out=moves[: part.shape[1]])
            if wide:
                target.copy_(own_part + moved)
            else:
                torch.add(own_part, moved, out=target)

    def _differences(
        self,
        row: int,
        extra: Tensor | None = None,
        padded: int = 0,
        within: slice | None = None,
        *,
        among: slice | None = None,
        wide: bool = False,
        cut: bool = False,
    ) -> Iterator[tuple[int, Tensor]]:
        """Starts of chunks and (k, chunk) differences to our own vector there, in memory that the next chunk reuses.

        `extra` (R, D) becomes the last vector; rows are filled with zeros up to `padded`; `within` are coordinates from a multiple of
        CHUNK, `among` peers, None: all. `wide`: in float64. `cut`: cut float32 too.
        """
        among = slice(0, self.received.shape[1]) if among is None else among
        within = slice(0, self.own.shape[1]) if within is None else within
        dtype, peers = torch.float64 if wide else self.own.dtype, among.stop - among.start
        far = (1e140 if dtype == torch.float64 else 1e17) if cut or dtype == torch.float64 else None
        absent = [peer for peer, there in enumerate(self.present[row, among].tolist()) if not there]
        size = min(CHUNK, within.stop - within.start)
        buffer = self.own.new_zeros((max(peers + (extra is not None), padded), size), dtype=dtype)
        received = torch.split(self.received[row, among, within], CHUNK, dim=1)  # one call is faster than slices
        own = torch.split(self.own[row, within], CHUNK)
        last = None if extra is None else torch.split(extra[row, within], CHUNK)
        part, target = buffer, buffer[:peers]
        for index, (peer_part, own_part) in enumerate(zip(received, own, strict=True)):
            if own_part.shape[0] < size:
                part = buffer[:, : own_part.shape[0]]
                target = part[:peers]
            if wide:
                torch.sub(peer_part.double(), own_part.double(), out=target)
            else:
                torch.sub(peer_part, own_part, out=target)
            if last is not None:
                torch.sub(last[index].to(dtype), own_part.to(dtype), out=part[peers])
            if far is not None:
                part.clamp_(-far, far)
            for peer in absent:
                part[peer].zero_()
            yield within.start + index * CHUNK, part

    def _blocks(self, stored: Tensor | None = None) -> Iterator[tuple[slice, slice, list[Tensor]]]:
        """Rows, coordinates, and p values (rows, coordinates) there; mixed ones in `stored` (R, p, D), or in memory that is reused."""
        rows, dim = self.own.shape
        weights = None if self.mixing is None else self.mixing[:, :, 1:].to(self.own.dtype)
        memory = None if weights is None or stored is not None else self.own.new_empty(self.count * self._largest())
        for some in _slices(0, rows, max(1, self.block // max(1, dim))):
            for columns in _slices(0, dim, self.block):
                if weights is None:
                    yield some, columns, self._values(some, columns)
                    continue
                if stored is not None:
                    values = stored[some, :, columns]
                else:
                    assert memory is not None
                    shape = (some.stop - some.start, self.count, columns.stop - columns.start)
                    values = memory[: math.prod(shape)].view(shape)
                self._mix(some, columns, weights, values)
                yield some, columns, list(values.unbind(1))

    def _values(self, rows: slice, columns: slice) -> list[Tensor]:
        own, received, present = self.own[rows, columns], self.received[rows, :, columns], self.present[rows]
        if bool(present.all()):
            return [own, *received.unbind(1)]
        return [own, *(torch.where(here[:, None], its, own) for here, its in zip(present.T, received.unbind(1), strict=True))]

    def _mix(self, rows: slice, columns: slice, weights: Tensor, values: Tensor) -> None:
        """Write mixed values to (rows, p, coordinates)."""
        products = self.own.new_empty(self.count * min(CHUNK, columns.stop - columns.start))
        for index, row in enumerate(range(rows.start, rows.stop)):
            some_weights = weights[row].clone()
            for first, differences in self._differences(row, within=columns, cut=True):
                width = differences.shape[1]
                moved = products[: self.count * width].view(self.count, width)
                torch.mm(some_weights, differences, out=moved)
                part = values[index, :, first - columns.start : first - columns.start + width]
                torch.add(moved, self.own[row, first : first + width], out=part)

    def _largest(self) -> int:
        """Return the number of values per vector in the largest block."""
        rows, dim = self.own.shape
        return min(dim, self.block) * min(rows, max(1, self.block // max(1, dim)))


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return (R, a, c) of (R, a, b) and (R, b, c), row by row for equal bits."""
    return torch.stack([first.clone() @ second.clone() for first, second in zip(left, right, strict=True)])


def _extended(mixing: Tensor, extra: Tensor | None) -> Tensor:
    """Return the mixing (R, p + 1, m + 1) that does not change the extra vector."""
    if extra is None:
        return mixing
    rows, mixed, count = mixing.shape
    extended = mixing.new_zeros((rows, mixed + 1, count + 1))
    extended[:, :mixed, :count] = mixing
    extended[:, mixed, count] = 1.0
    return extended


def _slices(first: int, last: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, last)) for start in range(first, last, step))
