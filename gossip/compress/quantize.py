"""Quantizers: k values to bytes and back. What decode returns is the same, bit for bit, on every machine.

The integer ones cut the values into buckets of 64. A bucket's step is the smallest bfloat16 s with max|x| <= L·s, where L is the
largest code; each value becomes one of the two multiples of s around it, by chance, so that its expectation is the value. The
reference scheme has an fp16 scale; bfloat16 costs the same 16 bits and at most 0.8 % of step width, spans all of float32's range (a
nearly converged swarm exchanges differences far below fp16's 6e-8), and code × step is exact in float32.

`omega` bounds the relative error: E‖Q(x) − x‖² <= omega·‖x‖². It is below 1 for all of these, so that each is a contraction
with δ = 1 − omega and may stand in a difference or feedback loop as it is.

Shapes: k values, m buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Generator, Tensor

BUCKET = 64
_SMALLEST_STEP = 2.0**-126  # bfloat16's least normal: no decoded value depends on how a device treats subnormals
_LARGEST_STEP = 2.0**120  # 127 · 2**120 is finite in float32
_BF16_ROUNDING = 2.0**-7


@dataclass(frozen=True, slots=True)
class Float32:
    """Values as they are, for float32 vectors. Larger ones (of float64) saturate."""

    code: ClassVar[int] = 1
    omega: ClassVar[float] = 2.0**-48

    def encode(self, values: Tensor, generator: Generator) -> bytes:
        """(k,) finite -> 4k bytes. Draws nothing. Raises ValueError("not_finite")."""
        return _pack_floats(values, "<f4")

    def decode(self, data: bytes, count: int) -> Tensor:
        """4·count bytes -> (count,) float32. Raises ValueError: bad_length, not_finite."""
        return _unpack_floats(data, count, "<f4", np.float32)

    def size(self, count: int) -> int:
        """Bytes that `count` values take."""
        return 4 * count


@dataclass(frozen=True, slots=True)
class Float64:
    """Values as they are, for float64 vectors."""

    code: ClassVar[int] = 2
    omega: ClassVar[float] = 0.0

    def encode(self, values: Tensor, generator: Generator) -> bytes:
        """(k,) finite -> 8k bytes. Draws nothing. Raises ValueError("not_finite")."""
        return _pack_floats(values, "<f8")

    def decode(self, data: bytes, count: int) -> Tensor:
        """8·count bytes -> (count,) float64. Raises ValueError: bad_length, not_finite."""
        return _unpack_floats(data, count, "<f8", np.float64)

    def size(self, count: int) -> int:
        """Bytes that `count` values take."""
        return 8 * count


@dataclass(frozen=True, slots=True)
class Fp16:
    """Rounded to the nearest half-precision number: an odd function, so antisymmetry survives it.

    `omega` holds for magnitudes from 2**-14 to 65504; smaller ones lose at most 2**-25 each, larger ones saturate.
    """

    code: ClassVar[int] = 3
    omega: ClassVar[float] = 2.0**-22

    def encode(self, values: Tensor, generator: Generator) -> bytes:
        """(k,) finite -> 2k bytes. Draws nothing. Raises ValueError("not_finite")."""
        return _pack_floats(values, "<f2")

    def decode(self, data: bytes, count: int) -> Tensor:
        """2·count bytes -> (count,) float32. Raises ValueError: bad_length, not_finite."""
        return _unpack_floats(data, count, "<f2", np.float32)

    def size(self, count: int) -> int:
        """Bytes that `count` values take."""
        return 2 * count


@dataclass(frozen=True, slots=True)
class Int8:
    """Eight bits a value, codes −127 … 127, and a step per bucket; unbiased.

    Wire: m steps (bfloat16), k codes.
    """

    code: ClassVar[int] = 4
    omega: ClassVar[float] = BUCKET / (4 * 127**2) * (1 + _BF16_ROUNDING) ** 2

    def encode(self, values: Tensor, generator: Generator) -> bytes:
        """(k,) finite -> bytes. Draws one float32 per bucket place. Raises ValueError("not_finite")."""
        steps, codes = _round_by_chance(values, 127, generator)
        return _pack_steps(steps) + codes[: values.numel()].tobytes()

    def decode(self, data: bytes, count: int) -> Tensor:
        """Bytes -> (count,) float32. Raises ValueError: bad_length, bad_scale, bad_code."""
        steps, body = _unpack_steps(data, count, self.size(count))
        return _multiply(steps, np.frombuffer(body, np.int8), 127, count)

    def size(self, count: int) -> int:
        """Bytes that `count` values take."""
        return 2 * _buckets(count) + count


@dataclass(frozen=True, slots=True)
class Int4:
    """Four bits a value, codes −7 … 7, and a step per bucket; unbiased.

    Wire: m steps (bfloat16), then two codes a byte, the first in the low half; an odd last half is 0.
    """

    code: ClassVar[int] = 5
    omega: ClassVar[float] = BUCKET / (4 * 7**2) * (1 + _BF16_ROUNDING) ** 2

    def encode(self, values: Tensor, generator: Generator) -> bytes:
        """(k,) finite -> bytes. Draws one float32 per bucket place. Raises ValueError("not_finite")."""
        steps, codes = _round_by_chance(values, 7, generator)
        halves = codes.view(np.uint8) & 0xF  # beyond k all codes are 0
        packed = halves[0::2] | (halves[1::2] << 4)
        return _pack_steps(steps) + packed[: (values.numel() + 1) // 2].tobytes()

    def decode(self, data: bytes, count: int) -> Tensor:
        """Bytes -> (count,) float32. Raises ValueError: bad_length, bad_scale, bad_code, bad_padding."""
        steps, body = _unpack_steps(data, count, self.size(count))
        packed = np.frombuffer(body, np.int8)
        codes = np.empty(2 * packed.size, np.int8)
        codes[0::2] = (packed << 4) >> 4  # arithmetic shifts: the sign comes along
        codes[1::2] = packed >> 4
        if codes[count:].any():
            raise ValueError("bad_padding")
        return _multiply(steps, codes[:count], 7, count)

    def size(self, count: int) -> int:
        """Bytes that `count` values take."""
        return 2 * _buckets(count) + (count + 1) // 2


def identity(dtype: torch.dtype = torch.float32) -> Float32 | Float64:
    """The quantizer that changes nothing in a vector of this dtype.

    Raises:
        ValueError: neither float32 nor float64.
    """
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    return Float32() if dtype == torch.float32 else Float64()


def _buckets(count: int) -> int:
    return -(-count // BUCKET)


def _pack_floats(values: Tensor, layout: str) -> bytes:
    if not bool(torch.isfinite(values).all()):
        raise ValueError("not_finite")
    with np.errstate(over="ignore"):
        rounded = values.detach().cpu().numpy().astype(layout)
    largest = np.finfo(layout).max
    return rounded.clip(-largest, largest).tobytes()


def _unpack_floats(data: bytes, count: int, layout: str, dtype: type[np.float32 | np.float64]) -> Tensor:
    if len(data) != np.dtype(layout).itemsize * count:
        raise ValueError("bad_length")
    values = np.frombuffer(data, layout).astype(dtype)
    if not np.isfinite(values).all():
        raise ValueError("not_finite")
    return torch.from_numpy(values)


def _round_by_chance(values: Tensor, levels: int, generator: Generator) -> tuple[Tensor, npt.NDArray[np.int8]]:
    """(k,) -> steps (m,) float32 that are bfloat16 numbers, codes (64·m,) within ±levels."""
    count = values.numel()
    padded = torch.nn.functional.pad(values.detach().cpu(), (0, -count % BUCKET)).view(-1, BUCKET)
    peak = padded.abs().amax(1).double()
    if not bool(torch.isfinite(peak).all()):
        raise ValueError("not_finite")
    steps = _steps(peak, levels)
    divisor = torch.where(steps > 0, steps, 1.0).to(padded.dtype)[:, None]
    ratio = torch.where(steps[:, None] > 0, padded / divisor, 0.0).clamp_(-levels, levels)
    low = ratio.floor()
    chance = torch.rand(padded.shape, generator=generator, device=generator.device).cpu()
    codes = low + (chance < ratio - low)  # the fraction is exact, and 0 is never rounded away
    return steps, codes.to(torch.int8).view(-1).numpy()


def _steps(peak: Tensor, levels: int) -> Tensor:
    """(m,) float64 -> (m,) float32: the least bfloat16 s with levels·s >= peak, within the bounds; 0 where peak is negligible."""
    wanted = (peak / levels).clamp(max=_LARGEST_STEP)
    bits = (wanted.float().view(torch.int32) + 0xFFFF) & ~0xFFFF
    steps = bits.view(torch.float32)
    short = (steps.double() * levels < peak) & (steps < _LARGEST_STEP)  # rounding to float32 may have gone down
    steps = torch.where(short, (bits + 0x10000).view(torch.float32), steps)
    return torch.where(peak < levels * _SMALLEST_STEP, 0.0, steps)


def _pack_steps(steps: Tensor) -> bytes:
    return (steps.numpy().view(np.uint32) >> 16).astype("<u2").tobytes()


def _unpack_steps(data: bytes, count: int, size: int) -> tuple[npt.NDArray[np.float32], bytes]:
    """Steps (m,) and the bytes after them; every length is checked first."""
    if len(data) != size:
        raise ValueError("bad_length")
    end = 2 * _buckets(count)
    steps = (np.frombuffer(data[:end], "<u2").astype(np.uint32) << 16).view(np.float32)
    in_bounds = (steps >= _SMALLEST_STEP) & (steps <= _LARGEST_STEP)  # false for NaN
    if not (in_bounds | (steps.view(np.uint32) == 0)).all():
        raise ValueError("bad_scale")
    return steps, data[end:]


def _multiply(steps: npt.NDArray[np.float32], codes: npt.NDArray[np.int8], levels: int, count: int) -> Tensor:
    """(count,) float32, after a check that the codes are some that encode could have written."""
    padded = np.zeros(steps.size * BUCKET, np.int8)
    padded[:count] = codes
    if (padded < -levels).any():
        raise ValueError("bad_code")
    buckets = padded.reshape(-1, BUCKET)
    peak = np.abs(buckets).max(axis=1, initial=0)
    if not np.where(
        steps > 0, peak >= levels - 1, peak == 0
    ).all():  # the least step leaves the largest value no other code
        raise ValueError("bad_code")
    return torch.from_numpy((buckets * steps[:, None]).reshape(-1)[:count])
