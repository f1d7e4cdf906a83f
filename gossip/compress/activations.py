"""Activations and their gradients between the stages of a crew, as bounded, versioned bytes.

    direct   header · values
    delta    header · samples · which are new · new ones in fp16 · the others' change

The change is that of a sample's activation since it was last sent: both ends keep what the receiver saw, m, and the sender sends Q(h − m).
As training settles changes shrink and with them the error, which stays as it is where values are sent direct. Q must round to the nearest:
by chance two bits are no contraction. It pays where the same samples come many times; those never seen again only fill the cache.

Source: AQ-SGD, Wang et al. 2022 (arXiv:2206.01299). Deviation: m is kept in fp16, and no more samples than both ends have room for.

A ValueError's text is one snake_case reason: bad_length, bad_version, bad_shape, bad_codec, bad_samples, unknown_sample, known_sample,
and those of quantizers: not_finite, bad_scale, bad_code, bad_padding.

Shapes: m samples, n numbers of one.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from starling.gossip.api import Quantizer
from starling.gossip.compress.quantize import Bf16, Float32, Fp16, integer

VERSION = 1
MAX_DIMS = 5
MAX_NUMBERS = 1 << 24  # numbers of one activation: 64 MB
_HEADER = struct.Struct("<BBB")  # version, code, dimensions
_DELTA = 128  # added to a quantizer's code


@dataclass(frozen=True, slots=True)
class Codec:
    """Encode activations: values by a quantizer, or each sample's change."""

    quantizer: Quantizer
    delta: bool = False

    @property
    def code(self) -> int:
        """Return its number on the wire."""
        return self.quantizer.code + _DELTA * self.delta


def codec(name: str, *, by_chance: bool = False) -> Codec:
    """float32, bfloat16, int8, int4, or delta8, delta4, delta2. `by_chance`: whole numbers are rounded without bias, as for gradients."""
    if name in {"float32", "bfloat16"}:
        return Codec(Float32() if name == "float32" else Bf16())
    bits = int(name[-1])
    return Codec(integer(bits, nearest=not by_chance), delta=name.startswith("delta"))


@dataclass(slots=True)
class Cache:
    """Each sample's last activation at the receiver, in fp16, equal at both ends: a change takes effect at `commit`.

    `capacity` bytes; what does not fit is never kept, at neither end.
    """

    capacity: int
    held: int = 0
    _seen: dict[int, Tensor] = field(default_factory=dict)
    _next: dict[int, Tensor] = field(default_factory=dict)

    def get(self, sample: int) -> Tensor | None:
        """Return (n,) of a sample; None: it is new."""
        return self._next.get(sample, self._seen.get(sample))

    def put(self, sample: int, values: Tensor) -> None:
        """Store (n,) fp16 if there is room."""
        if self.get(sample) is None:
            if self.held + values.nbytes > self.capacity:
                return
            self.held += values.nbytes
        self._next[sample] = values

    def commit(self) -> None:
        """The step was applied at both ends."""
        self._seen.update(self._next)
        self._next.clear()

    def clear(self) -> None:
        """Empty both generations: a step was abandoned, or the other end is a new one."""
        self._seen.clear()
        self._next.clear()
        self.held = 0


def encode(
    values: Tensor, codec: Codec, generator: Generator, cache: Cache | None = None, samples: Sequence[int] = ()
) -> tuple[bytes, Tensor]:
    """Return an activation or gradient (m, …) -> its payload, and what the receiver will have, float32.

    `cache` and the numbers of the m `samples` are for deltas. Raises ValueError: not_finite, bad_shape.
    """
    shape, flat = tuple(values.shape), values.detach().float().reshape(len(values), -1)
    _check(shape)
    header = _HEADER.pack(VERSION, codec.code, len(shape)) + struct.pack(f"<{len(shape)}I", *shape)
    if not codec.delta:
        body = codec.quantizer.encode(flat.reshape(-1), generator)
        return header + body, codec.quantizer.decode(body, flat.numel()).view(shape)
    assert cache is not None
    assert len(samples) == len(flat)
    known = [cache.get(sample) for sample in samples]
    listed = struct.pack(f"<{len(samples)}Q", *samples) + bytes(seen is None for seen in known)
    fresh = torch.stack([h for h, seen in zip(flat, known, strict=True) if seen is None] or [flat[:0].reshape(-1)])
    changed = [h - seen.float() for h, seen in zip(flat, known, strict=True) if seen is not None]
    new = Fp16().encode(fresh.reshape(-1), generator)
    change = codec.quantizer.encode(torch.cat(changed), generator) if changed else b""
    return header + listed + new + change, _restored(shape, known, new, change, codec, cache, samples)


def decode(data: bytes | memoryview, codec: Codec, count: int, cache: Cache | None = None) -> tuple[Tensor, tuple[int, ...]]:
    """Return the activation or gradient in a payload of `count` samples -> (count, …) float32 and, of deltas, the samples' numbers.

    Raises ValueError: a snake_case reason; nothing is kept of it.
    """
    data = memoryview(data)
    if len(data) < _HEADER.size:
        raise ValueError("bad_length")
    version, code, dims = _HEADER.unpack_from(data)
    if version != VERSION:
        raise ValueError("bad_version")
    if code != codec.code:
        raise ValueError("bad_codec")
    if not 1 <= dims <= MAX_DIMS:
        raise ValueError("bad_shape")
    body = _HEADER.size + 4 * dims
    if len(data) < body:
        raise ValueError("bad_length")
    shape = struct.unpack_from(f"<{dims}I", data, _HEADER.size)
    if shape[0] != count:
        raise ValueError("bad_shape")
    _check(shape)
    data, numbers = data[body:], math.prod(shape)
    if not codec.delta:
        return codec.quantizer.decode(data, numbers).view(shape), ()
    assert cache is not None
    if len(data) < 9 * count:
        raise ValueError("bad_length")
    samples = struct.unpack_from(f"<{count}Q", data)
    flags, each = bytes(data[8 * count : 9 * count]), numbers // count
    if any(flag > 1 for flag in flags):
        raise ValueError("bad_samples")
    known = [cache.get(sample) for sample in samples]
    for seen, flag in zip(known, flags, strict=True):
        if seen is None and not flag:
            raise ValueError("unknown_sample")
        if seen is not None and (flag or len(seen) != each):
            raise ValueError("known_sample")
    data, new = data[9 * count :], 2 * each * sum(flags)
    if len(data) < new:
        raise ValueError("bad_length")
    return _restored(shape, known, data[:new], data[new:], codec, cache, samples), samples


def _restored(
    shape: Sequence[int],
    known: Sequence[Tensor | None],
    new: bytes | memoryview,
    change: bytes | memoryview,
    codec: Codec,
    cache: Cache,
    samples: Sequence[int],
) -> Tensor:
    """Return the activations that both ends make of the same bytes, and cache them."""
    each, fresh = math.prod(shape[1:]), sum(seen is None for seen in known)
    first = iter(Fp16().decode(new, fresh * each).view(fresh, each))
    changes = len(known) - fresh
    moved = codec.quantizer.decode(change, changes * each) if changes else change
    if not changes and len(change):
        raise ValueError("bad_length")
    steps = iter(moved.view(changes, each) if isinstance(moved, Tensor) else ())
    rows = [(next(first) if seen is None else seen.float() + next(steps)).half() for seen in known]
    whole = torch.stack(rows)
    if not bool(torch.isfinite(whole).all()):
        raise ValueError("not_finite")
    for sample, row in zip(samples, rows, strict=True):
        cache.put(sample, row)
    return whole.float().view(tuple(shape))


def _check(shape: Sequence[int]) -> None:
    if not 1 <= len(shape) <= MAX_DIMS or not 1 <= math.prod(shape) <= MAX_NUMBERS:
        raise ValueError("bad_shape")
