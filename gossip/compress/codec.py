"""Payloads: the values of an exchange and the coordinates they belong to, as bounded, versioned, canonical bytes.

A request contains its support (`encode`, `decode`). A response is about the support of the request it answers, so it carries values
alone (`encode_values`, `decode_values`) and, if the responder chooses coordinates by drift, its wish for the next exchange.

    request    header · support · values
               support: nothing, blocks, a listing, a fragment, or a subspace as `Atoms` and `Factors` describe themselves
    response   header · values [· listing · wish]

Lengths, counts and codes are checked before anything is allocated for them; what follows the last part is an error; every payload that
decodes has only this one encoding of its support. A ValueError's text is one snake_case reason, fit for counting:
bad_length, bad_version, bad_support, bad_indices, bad_basis, bad_wish, wrong_dim, unknown_codec, not_finite, bad_scale, bad_code,
bad_padding.

Shapes: d parameters, k kept coordinates.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from starling.gossip.api import Quantizer
from starling.gossip.compress import indices as coding
from starling.gossip.compress.header import BLOCKS, HEADER, LISTING, VERSION, Kind
from starling.gossip.compress.quantize import Bucketed, Float
from starling.gossip.compress.select.dct import Atoms
from starling.gossip.compress.select.low_rank import LowRank
from starling.gossip.compress.support import Blocks, Fragment, Full, Indices, Support, blocks_in, most_blocks
from starling.gossip.lazy_torch import Generator, Tensor, torch
from starling.gossip.vector import finite


def encode(values: Tensor, support: Support, quantizer: Quantizer, dim: int, generator: Generator) -> bytes:
    """Return a request's payload: values (k,), finite, in the order of the support, which is in a vector (dim,); if it covers all, it
    is written as Full.

    Raises ValueError: "not_finite".
    """
    assert values.shape == (support.size(dim),), "values do not match the support"
    kind, described = _describe(support, dim)
    return b"".join((_header(kind, quantizer, dim), described, *_pieces(values, quantizer, generator)))


def encode_from(x: Tensor, support: Support, quantizer: Quantizer, generator: Generator) -> bytes:
    """Return a request's payload: what x (d,) has on the support. On the device of x until the bytes are packed; all of x is not copied
    first.

    Raises ValueError: "not_finite".
    """
    values = support.view(x)
    return encode(values, support, quantizer, x.numel(), generator)


def decode(
    data: bytes,
    dim: int,
    dtype: torch.dtype,
    allowed: Sequence[Quantizer],
    low_rank: LowRank | None = None,
    chunk: int = 0,
    device: torch.device | str = "cpu",
    parts: int = 0,
) -> tuple[Support, Tensor]:
    """Return the support and the (k,) values of a request.

    Args:
        data: from a peer.
        dim: d, the length that both ends agreed on.
        dtype: of the values returned.
        allowed: quantizers that may have been used.
        low_rank: rank and matrices that both ends agreed on; None: low-rank subspaces are an error.
        chunk: of the cosine atoms that both ends agreed on; 0: atoms are an error.
        device: of the values returned; there the bytes are unpacked.
        parts: of a vector that travels in fragments, as both ends agreed; 0: fragments are an error.

    Raises:
        ValueError: a snake_case reason.
    """
    kind, quantizer, body = _open(data, dim, allowed)
    support: Support
    match kind:
        case Kind.FULL:
            support = Full()
        case Kind.BLOCKS:
            (seed, start, count, block), body = _unpack(BLOCKS, body)
            blocks = blocks_in(dim, max(block, 1))
            if block < 1 or blocks > most_blocks(dim):
                raise ValueError("bad_support")
            if start >= blocks or not 1 <= count < blocks:
                raise ValueError("bad_support")
            if len(body) > quantizer.size(count * block) or len(body) < quantizer.size((count - 1) * block + 1):
                raise ValueError("bad_length")  # before a permutation is computed
            support = Blocks(seed, start, count, block)
        case Kind.INDICES:
            (count, length), body = _unpack(LISTING, body)
            if not 1 <= count < dim or len(body) != length + quantizer.size(count):
                raise ValueError("bad_support")
            support = Indices(torch.from_numpy(coding.decode(bytes(body[:length]), count, dim)))
            body = body[length:]
        case Kind.ATOMS if chunk:
            support, body = Atoms.parse(body, dim, chunk)
        case Kind.FRAGMENT if parts:
            support, body = Fragment.parse(body, dim, parts)
        case Kind.FACTORS if low_rank is not None:
            support, body = low_rank.parse(body, dim)
        case _:
            raise ValueError("bad_support")
    return support, _values(body, support.size(dim), quantizer, dtype, device)


def encode_values(
    values: Tensor, quantizer: Quantizer, dim: int, generator: Generator, wish: Indices | None = None
) -> tuple[bytes, Tensor]:
    """Encode values (k,) on the support of a request, with coordinates requested for the next exchange; return payload and decoded values.

    Raises ValueError: "not_finite".
    """
    kind = Kind.IMPLIED if wish is None else Kind.IMPLIED_AND_WISH
    tail = b"" if wish is None else wish.describe(dim)
    payload = b"".join((_header(kind, quantizer, dim), *_pieces(values, quantizer, generator), tail))
    body, count = memoryview(payload)[HEADER.size : len(payload) - len(tail)], values.numel()
    return payload, _values(body, count, quantizer, values.dtype, "cpu")


def decode_values(
    data: bytes, support: Support, dim: int, dtype: torch.dtype, allowed: Sequence[Quantizer], wish_limit: int = 0
) -> tuple[Tensor, Indices | None]:
    """Return the (k,) values of a response and the coordinates that the responder requests, at most `wish_limit`; 0: none is allowed.

    Raises ValueError: a snake_case reason.
    """
    kind, quantizer, body = _open(data, dim, allowed)
    size = quantizer.size(support.size(dim))
    match kind:
        case Kind.IMPLIED:
            wish = None
        case Kind.IMPLIED_AND_WISH:
            wish = _wish(body[size:], dim, wish_limit)
            body = body[:size]
        case _:
            raise ValueError("bad_support")
    return _values(body, support.size(dim), quantizer, dtype, "cpu"), wish


def size(support: Support, quantizer: Quantizer, dim: int) -> int:
    """Return the bytes of a request's payload."""
    return HEADER.size + len(_describe(support, dim)[1]) + quantizer.size(support.size(dim))


def values_size(support: Support, quantizer: Quantizer, dim: int) -> int:
    """Return the bytes of a response's payload without requested coordinates."""
    return HEADER.size + quantizer.size(support.size(dim))


def _pieces(values: Tensor, quantizer: Quantizer, generator: Generator) -> tuple[bytes | memoryview, ...]:
    """Return the values' bytes: not yet joined where the quantizer lets us, which saves a copy."""
    if isinstance(quantizer, Bucketed | Float):
        return quantizer.pieces(values, generator)
    return (quantizer.encode(values, generator),)


def _header(kind: Kind, quantizer: Quantizer, dim: int) -> bytes:
    return HEADER.pack(VERSION, kind, quantizer.code, dim)


def _describe(support: Support, dim: int) -> tuple[Kind, bytes]:
    if isinstance(support, Blocks | Indices) and support.size(dim) == dim:
        return Kind.FULL, b""
    return support.kind, support.describe(dim)


def _open(data: bytes, dim: int, allowed: Sequence[Quantizer]) -> tuple[int, Quantizer, memoryview]:
    """Return the kind, the quantizer and what follows the header; not a copy."""
    (version, kind, code, sent_dim), body = _unpack(HEADER, memoryview(data))
    if version != VERSION:
        raise ValueError("bad_version")
    if sent_dim != dim:
        raise ValueError("wrong_dim")
    quantizer = next((candidate for candidate in allowed if candidate.code == code), None)
    if quantizer is None:
        raise ValueError("unknown_codec")
    return kind, quantizer, body


def _unpack(layout: struct.Struct, data: memoryview) -> tuple[tuple[Any, ...], memoryview]:
    if len(data) < layout.size:
        raise ValueError("bad_length")
    return layout.unpack_from(data), data[layout.size :]


def _wish(data: memoryview, dim: int, limit: int) -> Indices:
    (count, length), body = _unpack(LISTING, data)
    if not 1 <= count <= min(limit, dim) or len(body) != length:
        raise ValueError("bad_wish")
    return Indices(torch.from_numpy(coding.decode(bytes(body), count, dim)))


def _values(data: memoryview, count: int, quantizer: Quantizer, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    if len(data) != quantizer.size(count):
        raise ValueError("bad_length")
    there = (device,) if isinstance(quantizer, Bucketed | Float) else ()  # the others' bytes are unpacked on the CPU
    values = quantizer.decode(data, count, *there).to(device)
    if torch.finfo(values.dtype).max <= torch.finfo(dtype).max:
        return values.to(dtype)
    values = values.to(dtype)
    if not finite(values):  # a float64 may not fit a float32
        raise ValueError("not_finite")
    return values
