"""Strictly increasing indices as few bytes, within 2 % of log2 C(d, k) bits for random ones up to k/d = 10 %, and less where they cluster.

    flat        one of the three layouts of `starling.gossip.compress.rice`, whose first bytes are 0 … 31, 254 and 255
    clustered   253 · log2 of the width u8 · occupied blocks u32 · length of their list in bytes u32 · list of the occupied blocks ·
                list of the indices with the unoccupied blocks removed; both lists flat

Little-endian. Top-k inside a seeded mask, or in a few rows and layers of a model, is clustered: this is near its entropy bound, which
no code of single gaps is. Widths are the mask's block of 64, 256 and 4,096. The smallest layout is taken, flat before clustered, the
smallest width of equal ones: so a list has one encoding, and only that one decodes.

Shapes: d parameters, k kept coordinates.
"""

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from starling.gossip.compress import rice
from starling.gossip.compress.rice import Bytes

IndexArray = npt.NDArray[np.int64]

_CLUSTERED = 253
_CLUSTERS = struct.Struct("<BBII")
_WIDTHS = (6, 8, 12)  # log2


@dataclass(frozen=True, slots=True)
class _Clusters:
    """The two lists of the clustered layout, planned; `shift` is log2 of the width."""

    shift: int
    outer: rice.Plan
    inner: rice.Plan

    @property
    def size(self) -> int:
        return _CLUSTERS.size + self.outer.size + self.inner.size


def size(indices: IndexArray, dim: int) -> int:
    """Return the number of bytes of `encode`'s result."""
    return _plan(indices, dim).size


def encode(indices: IndexArray, dim: int) -> bytes:
    """Map (k,) strictly increasing, 0 <= index < dim, k >= 1 -> canonical bytes."""
    planned = _plan(indices, dim)
    if isinstance(planned, rice.Plan):
        return rice.encode(planned)
    return _head(planned) + rice.encode(planned.outer) + rice.encode(planned.inner)


def decode(data: Bytes, count: int, dim: int) -> IndexArray:
    """Return the (count,) indices below `dim` that `encode` made `data` from.

    Lengths are checked before anything is allocated, and no array takes more than max(d, 8·len(data), 64k) bytes.

    Raises ValueError: "bad_indices", for anything encode cannot have made.
    """
    indices = (_decode_clusters if data[:1] == bytes([_CLUSTERED]) else rice.decode)(data, count, dim)
    planned = _plan(indices, dim)
    if isinstance(planned, rice.Plan):
        heads = [(0, rice.head(planned))]
    else:
        first = _head(planned) + rice.head(planned.outer)
        heads = [(0, first), (_CLUSTERS.size + planned.outer.size, rice.head(planned.inner))]
    if any(data[at : at + len(head)] != head for at, head in heads):
        raise ValueError("bad_indices")
    return indices


def _plan(indices: IndexArray, dim: int) -> rice.Plan | _Clusters:
    """Return the smallest layout."""
    best: rice.Plan | _Clusters = rice.plan(indices, dim)
    for shift in _WIDTHS:
        clusters = _clusters(indices, dim, shift)
        if clusters is not None and clusters.size < best.size:
            best = clusters
    return best


def _clusters(indices: IndexArray, dim: int, shift: int) -> _Clusters | None:
    """None where about as many of the N blocks are occupied as k random indices would: N(1 − exp(−k/N)) >= Nk/(N + k)."""
    blocks = indices >> shift
    first = np.empty(blocks.size, np.bool_)
    first[0] = True
    np.not_equal(blocks[1:], blocks[:-1], out=first[1:])
    occupied, count, total = int(np.count_nonzero(first)), indices.size, _blocks_in(dim, shift)
    if occupied * (total + count) >= total * count:
        return None
    inner = np.cumsum(first) - 1
    inner <<= shift
    inner |= indices & ((1 << shift) - 1)
    return _Clusters(shift, rice.plan(blocks[first], total), rice.plan(inner, occupied << shift))


def _head(planned: _Clusters) -> bytes:
    return _CLUSTERS.pack(_CLUSTERED, planned.shift, planned.outer.gaps.size, planned.outer.size)


def _decode_clusters(data: Bytes, count: int, dim: int) -> IndexArray:
    if not 1 <= count <= dim or not _CLUSTERS.size < len(data) <= rice.longest(count, dim):
        raise ValueError("bad_indices")  # beyond this length the flat list would be smaller
    _, shift, occupied, length = _CLUSTERS.unpack_from(data)
    end = _CLUSTERS.size + length
    if shift not in _WIDTHS or not occupied <= count <= occupied << shift or end >= len(data):
        raise ValueError("bad_indices")
    outer = rice.decode(data[_CLUSTERS.size : end], occupied, _blocks_in(dim, shift))
    indices = rice.decode(data[end:], count, occupied << shift)
    rank = indices >> shift
    if rank[0] != 0 or rank[-1] != occupied - 1 or (rank[1:] - rank[:-1] > 1).any():
        raise ValueError("bad_indices")  # a block listed as occupied is empty
    indices &= (1 << shift) - 1
    indices |= outer[rank] << shift
    if indices[-1] >= dim:
        raise ValueError("bad_indices")
    return indices


def _blocks_in(dim: int, shift: int) -> int:
    return -(-dim >> shift)
