"""Strictly increasing numbers as few bytes, by the gaps between them: a Rice code, or a bitmap where that is smaller.

A Rice code of parameter b splits each gap: the low b bits as they are, the high part in unary, zeros ended by a one. All low
bits come first and all unary parts after them, from a new byte: so both are coded without a loop over the numbers.

    one parameter   b, which d and k determine · low bits · unary parts
    per block       254 · 5 bits for each block of 128 numbers, its parameter · low bits, those of the smallest parameter first ·
                    unary parts
    bitmap          255 · d bits

The smallest is taken, the first of equal ones, so that a list has one encoding. A block's parameter is the one of fewest bits, the
smallest of equal ones. Blocks are short because layers of a model differ by orders of magnitude in density (1,024 numbers a block cost
4.5 bits a number instead of 3.4 on thirty such layers).

Source: Golomb 1966; Rice 1979; the single b after Kiely 2004, with ln 2 · d/k the median gap.

Shapes: d, numbers are below it; k numbers.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.integer[Any]]  # (k,) int32 or int64
Bytes = bytes | memoryview
Bits = npt.NDArray[np.uint8]  # one bit per item

BLOCK = 128
PER_BLOCK = 254
BITMAP = 255
_PARAMETER_BITS = 5
_LARGEST_PARAMETER = 2**_PARAMETER_BITS - 1


@dataclass(frozen=True, slots=True)
class Plan:
    """The layout in which a list will be coded."""

    dim: int  # d
    gaps: Numbers  # (k,) numbers left out before each
    layout: int  # the first byte
    size: int  # bytes in all
    parameters: npt.NDArray[np.uint8] | None  # (blocks,) uint8, one for each block of 128; of the layout per block only


def rice_parameter(count: int, dim: int) -> int:
    """max(0, round(log2(ln 2 · d/k))), by comparisons alone, so that no two mathematical libraries can disagree."""
    median = math.log(2.0) * dim / count
    b = 0
    while median * median >= 2.0 ** (2 * b + 1):
        b += 1
    return b


def plan(numbers: Numbers, dim: int) -> Plan:
    """Map (k,) strictly increasing, 0 <= number < dim, k >= 1 -> the smallest layout."""
    gaps = _gaps(numbers, dim)
    b = rice_parameter(gaps.size, dim)
    layout, size = b, _bytes(gaps.size * b) + _bytes(int((gaps >> b).sum()) + gaps.size)
    parameters = None
    if gaps.size > BLOCK:
        each, low, high = _block_parameters(gaps)
        smaller = _bytes(_PARAMETER_BITS * each.size) + _bytes(low) + _bytes(high)
        if smaller < size:
            layout, size, parameters = PER_BLOCK, smaller, each
    if _bytes(dim) < size:
        layout, size, parameters = BITMAP, _bytes(dim), None
    return Plan(dim, gaps, layout, 1 + size, parameters)


def longest(count: int, dim: int) -> int:
    """Return the most bytes that the smallest layout can take: high parts of gaps that sum to less than d are bounded."""
    b = rice_parameter(count, dim)
    return 1 + min(_bytes(count * b) + _bytes(count + (dim >> b)), _bytes(dim))


def head(planned: Plan) -> bytes:
    """Return the first bytes of `encode`: every choice that was made."""
    first = bytes([planned.layout])
    if planned.parameters is None:
        return first
    return first + np.packbits(_low_bits(planned.parameters, _PARAMETER_BITS)).tobytes()


def encode(planned: Plan) -> bytes:
    """Return the bytes, as many as planned."""
    gaps, first = planned.gaps, head(planned)
    if planned.layout == BITMAP:
        present = np.zeros(planned.dim, np.uint8)
        present[np.cumsum(gaps + 1) - 1] = 1
        return first + np.packbits(present).tobytes()
    if planned.parameters is None:
        b = planned.layout
        return first + np.packbits(_low_bits(gaps, b)).tobytes() + _unary(gaps >> b)
    parameters = np.repeat(planned.parameters, BLOCK)[: gaps.size]
    low = [_low_bits(gaps[parameters == b], b) for b in np.unique(planned.parameters).tolist()]
    return first + np.packbits(np.concatenate(low)).tobytes() + _unary(gaps >> parameters)


def decode(data: Bytes, count: int, dim: int) -> npt.NDArray[np.int64]:
    """Return the (count,) numbers below `dim` that `data` encodes.

    No other bytes with the same head encode them; the caller checks that this is the head of their plan.
    Lengths are checked before anything is allocated: no array takes more than max(d, 8·len(data), 64k) bytes.

    Raises ValueError: "bad_indices".
    """
    if not data or not 1 <= count <= dim or len(data) > longest(count, dim):
        raise ValueError("bad_indices")
    layout = data[0]
    if layout == BITMAP:
        return _decode_bitmap(data[1:], count, dim)
    if layout == PER_BLOCK:
        return _decode_per_block(data[1:], count, dim)
    if layout != rice_parameter(count, dim):
        raise ValueError("bad_indices")
    return _decode_one(data[1:], layout, count, dim)


def _bytes(bits: int) -> int:
    return -(-bits // 8)


def _gaps(numbers: Numbers, dim: int) -> Numbers:
    gaps: Numbers = np.empty(numbers.size, np.int32 if dim < 2**31 else np.int64)
    gaps[0] = numbers[0]
    np.subtract(numbers[1:], numbers[:-1], out=gaps[1:], casting="same_kind")
    gaps[1:] -= 1
    return gaps


def _block_parameters(gaps: Numbers) -> tuple[npt.NDArray[np.uint8], int, int]:
    """Return the parameters (blocks,) of fewest bits, and the bits of all low and of all unary parts."""
    blocks = -(-gaps.size // BLOCK)
    members = np.full(blocks, BLOCK, np.int64)
    members[-1] = gaps.size - (blocks - 1) * BLOCK
    high = np.zeros((blocks, BLOCK), gaps.dtype)
    high.reshape(-1)[: gaps.size] = gaps
    parameters = np.zeros(blocks, np.uint8)
    runs = high.sum(1)
    low, unary = 0, int(runs.sum()) + gaps.size
    for _ in range(_LARGEST_PARAMETER):
        high >>= 1
        shorter = high.sum(1)
        saved = runs - shorter
        better = saved > members  # each member needs one more low bit; the saving only falls as b grows
        if not better.any():
            break
        parameters += better
        low += int(members[better].sum())
        unary -= int(saved[better].sum())
        runs = shorter
    return parameters, low, unary


def _low_bits(values: Numbers, b: int) -> Bits:
    """Map (n,) -> (n·b,): the low b bits of each, highest first."""
    width = _word(b)
    bits = np.unpackbits(values.astype(f">u{width}").view(np.uint8))
    return bits.reshape(-1, 8 * width)[:, 8 * width - b :].reshape(-1)


def _from_low_bits(bits: Bits, b: int) -> npt.NDArray[np.int64]:
    """Return the inverse: (n·b,) -> (n,), b > 0."""
    width = _word(b)
    padded = np.zeros((bits.size // b, 8 * width), np.uint8)
    padded[:, 8 * width - b :] = bits.reshape(-1, b)
    return np.packbits(padded).view(f">u{width}").astype(np.int64)


def _word(b: int) -> int:
    """Bytes of the least unsigned integer with b bits."""
    return next(width for width in (1, 2, 4, 8) if 8 * width >= b)


def _unary(high: Numbers) -> bytes:
    ends = np.cumsum(high + 1, dtype=np.int64) - 1
    bits = np.zeros(int(ends[-1]) + 1, np.uint8)
    bits[ends] = 1
    return np.packbits(bits).tobytes()


def _decode_bitmap(data: Bytes, count: int, dim: int) -> npt.NDArray[np.int64]:
    if len(data) != _bytes(dim):
        raise ValueError("bad_indices")
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    if np.count_nonzero(bits) != count or bits[dim:].any():
        raise ValueError("bad_indices")
    return _places(bits)


def _decode_one(data: Bytes, b: int, count: int, dim: int) -> npt.NDArray[np.int64]:
    end = _bytes(count * b)
    gaps = _from_unary(data[end:], count)
    low = _padded_bits(data[:end], count * b)
    if b:
        gaps <<= b
        gaps |= _from_low_bits(low, b)
    return _sum(gaps, dim)


def _decode_per_block(data: Bytes, count: int, dim: int) -> npt.NDArray[np.int64]:
    blocks = -(-count // BLOCK)
    start = _bytes(_PARAMETER_BITS * blocks)
    each = _from_low_bits(_padded_bits(data[:start], _PARAMETER_BITS * blocks), _PARAMETER_BITS).astype(np.uint8)
    parameters = np.repeat(each, BLOCK)[:count]
    total = int(parameters.sum(dtype=np.int64))
    end = start + _bytes(total)
    gaps = _from_unary(data[end:], count)
    low = _padded_bits(data[start:end], total)
    gaps <<= parameters
    at = 0
    for b in np.unique(each).tolist():
        if b:
            members = parameters == b
            bits = int(np.count_nonzero(members)) * b
            gaps[members] |= _from_low_bits(low[at : at + bits], b)
            at += bits
    return _sum(gaps, dim)


def _padded_bits(data: Bytes, count: int) -> Bits:
    """Return the (count,) bits of exactly as many bytes as they need, filled up with zeros."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    if not count <= bits.size < count + 8 or bits[count:].any():
        raise ValueError("bad_indices")
    return bits[:count]


def _places(bits: Bits) -> npt.NDArray[np.int64]:
    """Return the places of the ones: ten times faster on booleans than on the same bytes as numbers."""
    return np.flatnonzero(bits.view(np.bool_)).astype(np.int64, copy=False)


def _from_unary(data: Bytes, count: int) -> npt.NDArray[np.int64]:
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    if np.count_nonzero(bits) != count or not bits[-8:].any():
        raise ValueError("bad_indices")
    ends = _places(bits)
    ends[1:] -= ends[:-1] + 1
    return ends


def _sum(gaps: npt.NDArray[np.int64], dim: int) -> npt.NDArray[np.int64]:
    """Return the numbers, if they are below dim; gaps are below 2**63."""
    if float(gaps.sum(dtype=np.float64)) > dim:  # before a sum of integers could wrap
        raise ValueError("bad_indices")
    gaps += 1
    numbers: npt.NDArray[np.int64] = np.cumsum(gaps, out=gaps)
    numbers -= 1
    if numbers[-1] >= dim:
        raise ValueError("bad_indices")
    return numbers
