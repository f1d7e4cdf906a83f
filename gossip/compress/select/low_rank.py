"""Low-rank subspaces: r directions of each matrix in the flat vector; parameters that are not matrices are sent unprojected.

`take` gives the coefficients of a vector's projection onto the subspace, `add` adds the vector that coefficients represent. A basis Q of
one side of each matrix, orthonormal but for its rounding to fp16, is part of the request; then M ≈ P Qᵀ (right) or M ≈ Q Pᵀ (left), and
the coefficients are P. `take` solves for the rounded basis: so it is a projection, and the remainder is never longer than the vector.
`add` is made of separate multiplications and additions in one order, so both ends of an exchange move by the same bits with opposite
signs, on any device.

Shapes: d parameters, k coefficients, r rank; a matrix is (m, n) = (rows, cols).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, TypeVar

import numpy as np
from msgspec import Meta

from starling.gossip.bounds import Steps, parameters
from starling.gossip.compress.header import FACTORS, Kind
from starling.gossip.compress.support import Full, Support
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.rng import generator
from starling.gossip.seeds import derive
from starling.gossip.vector import Layout

Data = TypeVar("Data", bytes, memoryview)
_FP16 = 2
_SKEW = 0.25  # largest deviation of a peer's basis from orthonormal: rounding to fp16 changes one of rank r by at most 2⁻¹⁰·r
_SKEW_PER_RANK = 2.0**-9


@dataclass(frozen=True, slots=True, order=True)
class Matrix:
    """A matrix in a flat vector, row by row."""

    offset: int  # index of its first number, >= 0
    rows: int  # m >= 1
    cols: int  # n >= 1

    def __post_init__(self) -> None:
        if self.offset < 0 or self.rows < 1 or self.cols < 1:
            raise ValueError(f"need offset >= 0, rows >= 1, cols >= 1, got {self.offset}, {self.rows}, {self.cols}")

    @property
    def end(self) -> int:
        """The coordinate after its last."""
        return self.offset + self.rows * self.cols

    def of(self, x: Tensor) -> Tensor:
        """Map (d,) -> (m, n), a view."""
        return x[self.offset : self.end].view(self.rows, self.cols)


def matrices_of(layout: Layout) -> tuple[Matrix, ...]:
    """Return a model's parameters of two and more dimensions, as matrices of their first against all others."""
    return tuple(
        Matrix(offset, shape[0], math.prod(shape[1:]))
        for offset, shape in zip(layout.offsets, layout.shapes, strict=False)  # offsets end with d
        if len(shape) >= 2 and math.prod(shape) > 0
    )


@dataclass(frozen=True, slots=True, eq=False)
class Factors(Support):
    """The subspace of one basis for each of some matrices, and every coordinate outside of them.

    The coefficients are, matrix by matrix, r vectors along the other side one after the other, then the coordinates outside, ascending.
    """

    matrices: tuple[Matrix, ...]  # ascending, not overlapping
    # basis of each matrix, (m, r) if `left` else (n, r), float32 numbers exact in fp16, orthonormal but for that rounding
    bases: tuple[Tensor, ...]
    left: bool  # whether the bases are those of the left side
    kind: ClassVar[Kind] = Kind.FACTORS

    def __post_init__(self) -> None:
        _check_order(self.matrices)
        for matrix, basis in zip(self.matrices, self.bases, strict=True):
            side = matrix.rows if self.left else matrix.cols
            if basis.dim() != 2 or basis.shape[0] != side or not 1 <= basis.shape[1] <= min(matrix.rows, matrix.cols):
                raise ValueError(f"a basis of {matrix} must be ({side}, rank), got {tuple(basis.shape)}")

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Factors)
            and (self.matrices, self.left) == (other.matrices, other.left)
            and all(torch.equal(mine, theirs) for mine, theirs in zip(self.bases, other.bases, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]

    def take(self, x: Tensor) -> Tensor:
        """Map (d,) -> (k,): coefficients of the projection, P = M Q (QᵀQ)⁻¹."""
        pieces = []
        for matrix, basis in zip(self.matrices, self.bases, strict=True):
            Q = basis.to(x)
            block = matrix.of(x).mT if self.left else matrix.of(x)
            pieces.append(torch.linalg.solve(Q.mT @ Q, (block @ Q).mT).reshape(-1))
        pieces += [x[start:end] for start, end in _outside(self.matrices, x.numel())]
        return torch.cat(pieces)

    def spread(self, values: Tensor, dim: int) -> Tensor:
        """Coefficients (k,) -> the vector (dim,) they represent, the same bits on every machine."""
        spread = values.new_empty(dim)
        rest = values
        for matrix, basis in zip(self.matrices, self.bases, strict=True):
            coefficients, rest = self._unpack(matrix, basis, rest)
            block = matrix.of(spread)
            for order, (direction, along) in enumerate(zip(basis.to(values).mT, coefficients, strict=True)):
                rows, cols = (direction, along) if self.left else (along, direction)
                term = rows[:, None] * cols  # not fused with the addition, which would round once less on some machines
                block.copy_(term if order == 0 else block + term)
        for start, end in _outside(self.matrices, dim):
            spread[start:end] = rest[: end - start]
            rest = rest[end - start :]
        return spread

    def size(self, dim: int) -> int:
        """Return the number of coefficients, k, in a vector of `dim`."""
        inside = sum(
            basis.shape[1] * (matrix.cols if self.left else matrix.rows) for matrix, basis in zip(self.matrices, self.bases, strict=True)
        )
        return inside + sum(end - start for start, end in _outside(self.matrices, dim))

    def step(self, x: Tensor) -> Factors:
        """Half a power iteration: the other side's basis, spanning what this one's directions become in x (d,)."""
        bases = []
        for matrix, basis in zip(self.matrices, self.bases, strict=True):
            block = matrix.of(x).double()
            block = block / block.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
            bases.append(_orthonormal((block.mT if self.left else block) @ basis.to(block)))
        return Factors(self.matrices, tuple(bases), not self.left)

    def turned(self, values: Tensor) -> Factors:
        """Return the other side's basis, spanning the coefficients (k,): where the power iteration of what they were taken of goes on."""
        bases, rest = [], values
        for matrix, basis in zip(self.matrices, self.bases, strict=True):
            coefficients, rest = self._unpack(matrix, basis, rest)
            wide = coefficients.mT.double()
            bases.append(_orthonormal(wide / wide.abs().max().clamp_min(torch.finfo(torch.float64).tiny)))
        return Factors(self.matrices, tuple(bases), not self.left)

    def describe(self, dim: int) -> bytes:
        """Return the side, then the bases as little-endian fp16, direction by direction."""
        sides = [basis.mT.contiguous().cpu().numpy().astype("<f2").tobytes() for basis in self.bases]
        return FACTORS.pack(self.left) + b"".join(sides)

    def _unpack(self, matrix: Matrix, basis: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the coefficients (r, other side) of one matrix, and those after them."""
        rank, side = basis.shape[1], matrix.cols if self.left else matrix.rows
        return values[: rank * side].view(rank, side), values[rank * side :]


@parameters
class LowRank:
    """PowerSGD's subspace: r directions per matrix, found by one power iteration from a seeded start.

    A matrix stays whole where factors are not smaller by more than `saving`: (m + n)·r·saving >= m·n. Vectors stay whole as well.

    Contraction: a random start holds r/n of each matrix in expectation, and a power iteration never loses any of it. `Factors.turned` and
    `Factors.step` continue from a former exchange instead, which after a few is as good as the best r directions.

    Source: Vogels, Karimireddy and Jaggi 2019 (arXiv:1905.13727); between pairs 2020 (arXiv:2008.01425).

    Args:
        rank: r >= 1.
        matrices: where they lie in the vector, ascending and not overlapping, as `matrices_of` a model.
        saving: >= 1.
    """

    rank: Steps = 4
    matrices: tuple[Matrix, ...] = ()
    saving: Annotated[float, Meta(ge=1, le=1e6)] = 2.0

    def __post_init__(self) -> None:
        _check_order(self.matrices)

    @property
    def factored(self) -> tuple[Matrix, ...]:
        """The matrices that do not stay whole."""
        return tuple(m for m in self.matrices if (m.rows + m.cols) * self.rank * self.saving < m.rows * m.cols)

    def contraction(self, dim: int) -> float:
        """δ = the least r/n, in expectation over the seed."""
        return min((self.rank / matrix.cols for matrix in self.factored), default=1.0)

    def start(self, seed: int) -> Factors:
        """Random directions, uniformly distributed, on the right."""
        chance = generator(seed, "low rank")
        drawn = [torch.randn(m.cols, self.rank, generator=chance, dtype=torch.float64) for m in self.factored]
        return Factors(self.factored, tuple(_orthonormal(basis) for basis in drawn), left=False)

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Factors | Full:
        """x, reference: (d,) finite -> left bases for x, or for its change since the reference; all of it if no matrix is factored.

        Every turn of an edge starts from other random directions: the same ones would find again what the last exchange sent.
        """
        start = self.start(derive(seed, "turn", turn))
        return start.step(x if reference is None else x - reference) if start.matrices else Full()

    def parse(self, data: Data, dim: int) -> tuple[Factors, Data]:
        """Return a support of this rank and these matrices from a peer's bytes, and what follows it.

        Raises ValueError: bad_length, bad_support, bad_basis; "wrong_dim" if the matrices do not fit a (dim,) vector.
        """
        factored = self.factored
        if self.matrices and self.matrices[-1].end > dim:
            raise ValueError("wrong_dim")
        if len(data) < FACTORS.size:
            raise ValueError("bad_length")
        (left,), rest = FACTORS.unpack_from(data), data[FACTORS.size :]
        if left > 1 or not factored:
            raise ValueError("bad_support")
        bases = []
        for matrix in factored:
            side = matrix.rows if left else matrix.cols
            length = _FP16 * self.rank * side
            if len(rest) < length:
                raise ValueError("bad_length")
            numbers = np.frombuffer(rest[:length], "<f2").astype(np.float32).reshape(self.rank, side)
            bases.append(_checked(torch.from_numpy(numbers).mT))
            rest = rest[length:]
        return Factors(factored, tuple(bases), bool(left)), rest


def _check_order(matrices: tuple[Matrix, ...]) -> None:
    for before, after in pairwise(matrices):
        if after.offset < before.end:
            raise ValueError(f"matrices must be ascending and must not overlap, got {before} before {after}")


def _outside(matrices: tuple[Matrix, ...], dim: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches of a (dim,) vector that no matrix covers."""
    start = 0
    for matrix in matrices:
        if matrix.offset > start:
            yield start, matrix.offset
        start = matrix.end
    if start < dim:
        yield start, dim


def _orthonormal(wide: Tensor) -> Tensor:
    """Map (m, r) -> an orthonormal basis of at least what it spans (m, r), rounded to fp16. Householder, so a deficient rank does no
    harm.
    """
    basis: Tensor = torch.linalg.qr(wide).Q
    return basis.half().float()


def _checked(basis: Tensor) -> Tensor:
    """Long directions would let short coefficients move a model far, parallel ones cannot be solved for."""
    wide = basis.double()
    skew = torch.linalg.matrix_norm(wide.mT @ wide - torch.eye(wide.shape[1], dtype=torch.float64))
    if not bool(skew <= min(_SKEW, _SKEW_PER_RANK * wide.shape[1])):  # false for NaN
        raise ValueError("bad_basis")
    return basis
