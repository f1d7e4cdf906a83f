"""Strictly increasing indices as few bytes: gaps in a Rice code, or a bitmap where that is smaller.

Rice: the first byte is b, which d and k determine; then the low b bits of all gaps; then, from a new byte, each gap's high part in
unary, zeros ended by a one. Keeping the two parts apart lets both be coded without a loop over indices. Bitmap: a first byte 255, then
d bits. Within 2 % of log2 C(d, k) for random indices up to k/d = 10 %.

Source: Golomb 1966; Rice 1979; b after Kiely 2004, with ln 2 · d/k the median gap.

Shapes: d parameters, k kept coordinates.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

IndexArray = npt.NDArray[np.int64]
_BITMAP = 255


def rice_parameter(count: int, dim: int) -> int:
    """max(0, round(log2(ln 2 · d/k))), by comparisons alone, so that no two mathematical libraries can disagree."""
    median = math.log(2.0) * dim / count
    b = 0
    while median * median >= 2.0 ** (2 * b + 1):
        b += 1
    return b


def size(indices: IndexArray, dim: int) -> int:
    """Bytes that `encode` gives."""
    return 1 + min(_rice_bytes(indices, dim), _bitmap_bytes(dim))


def encode(indices: IndexArray, dim: int) -> bytes:
    """(k,) strictly increasing, 0 <= index < dim, k >= 1 -> canonical bytes."""
    if _rice_bytes(indices, dim) > _bitmap_bytes(dim):
        present = np.zeros(dim, np.uint8)
        present[indices] = 1
        return bytes([_BITMAP]) + np.packbits(present).tobytes()
    b = rice_parameter(indices.size, dim)
    gaps = _gaps(indices)
    low = np.empty((indices.size, b), np.uint8)
    for bit in range(b):
        low[:, bit] = (gaps >> (b - 1 - bit)) & 1
    ends = np.cumsum((gaps >> b) + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1, np.uint8)
    unary[ends] = 1
    return bytes([b]) + np.packbits(low).tobytes() + np.packbits(unary).tobytes()


def decode(data: bytes, count: int, dim: int) -> IndexArray:
    """The (count,) indices below `dim` that `encode` made `data` from.

    Lengths are checked before anything is allocated, and no array is longer than max(d, k·b, 4k) items.

    Raises:
        ValueError: "bad_indices", for anything encode cannot have made.
    """
    if not data or not 1 <= count <= dim:
        raise ValueError("bad_indices")
    if data[0] == _BITMAP:
        indices = _decode_bitmap(data[1:], count, dim)
        canonical = _rice_bytes(indices, dim) > _bitmap_bytes(dim)
    else:
        indices = _decode_rice(data, count, dim)
        canonical = len(data) - 1 <= _bitmap_bytes(dim)
    if not canonical:
        raise ValueError("bad_indices")
    return indices


def _decode_bitmap(data: bytes, count: int, dim: int) -> IndexArray:
    if len(data) != _bitmap_bytes(dim):
        raise ValueError("bad_indices")
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    if np.count_nonzero(bits) != count or bits[dim:].any():
        raise ValueError("bad_indices")
    return np.flatnonzero(bits).astype(np.int64)


def _decode_rice(data: bytes, count: int, dim: int) -> IndexArray:
    b = rice_parameter(count, dim)
    end = 1 + -(-count * b // 8)
    longest = -(-(count + (dim >> b)) // 8)  # the high parts of gaps that sum to less than d
    if data[0] != b or not 1 <= len(data) - end <= longest:
        raise ValueError("bad_indices")
    unary = np.unpackbits(np.frombuffer(data[end:], np.uint8))
    if np.count_nonzero(unary) != count or not unary[-8:].any():
        raise ValueError("bad_indices")
    bits = np.unpackbits(np.frombuffer(data[1:end], np.uint8))
    if bits[count * b :].any():
        raise ValueError("bad_indices")
    low = bits[: count * b].reshape(count, b)
    gaps = (np.diff(np.flatnonzero(unary), prepend=-1) - 1).astype(np.int64)
    for bit in range(b):
        gaps = (gaps << 1) | low[:, bit]
    indices: IndexArray = np.cumsum(gaps + 1) - 1
    if indices[-1] >= dim:
        raise ValueError("bad_indices")
    return indices


def _gaps(indices: IndexArray) -> IndexArray:
    return np.diff(indices, prepend=-1) - 1


def _rice_bytes(indices: IndexArray, dim: int) -> int:
    b = rice_parameter(indices.size, dim)
    high = int((_gaps(indices) >> b).sum()) + indices.size
    return -(-indices.size * b // 8) + -(-high // 8)


def _bitmap_bytes(dim: int) -> int:
    return -(-dim // 8)
