"""Values as floats: unchanged, or rounded to the nearest 16-bit float.

Shapes: k values.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import torch
from torch import Generator, Tensor

from starling.gossip.compress.buffers import empty
from starling.gossip.vector import finite

_CHUNK = 1 << 18
_CHUNK_ELSEWHERE = 1 << 22
_FORMATS: Mapping[torch.dtype, tuple[int, float]] = MappingProxyType(
    {torch.float32: (1, 2.0**-48), torch.float64: (2, 0.0), torch.float16: (3, 2.0**-22), torch.bfloat16: (6, 2.0**-16)}
)
"""dtype -> code on the wire, omega."""


@dataclass(frozen=True, slots=True)
class Float:
    """Values in a float format, rounded to the nearest: an odd function, so antisymmetry survives it. Too large ones saturate.

    `omega` holds for normal numbers. Below 2**-14 fp16 loses at most 2**-25 a value, below 2**-126 bfloat16 at most 2**-134. float32 and
    float64 lose nothing of vectors of that dtype.

    Args:
        layout: torch.float32, float64, float16 or bfloat16.
    """

    layout: torch.dtype

    @property
    def code(self) -> int:
        """Return its number on the wire."""
        return _FORMATS[self.layout][0]

    @property
    def omega(self) -> float:
        """Return the bound of the relative squared error."""
        return _FORMATS[self.layout][1]

    def size(self, count: int) -> int:
        """Return the bytes of `count` values."""
        return self.layout.itemsize * count

    def draws(self, count: int) -> int:
        return 0

    def encode(self, values: Tensor, generator: Generator) -> bytes:
        """Map (k,) finite -> bytes. Draws nothing. Raises ValueError("not_finite")."""
        return b"".join(self.pieces(values, generator))

    def pieces(self, values: Tensor, generator: Generator) -> tuple[memoryview, ...]:
        """Return the parts of `encode`, for callers that add others: joining copies everything."""
        values = values.detach()
        rounded = empty(values.numel(), values.device, self.layout)
        for start, end in _chunks(values.numel(), values.device):
            _round(values[start:end], rounded[start:end])
        return (rounded.cpu().view(torch.uint8).numpy().data,)

    def decode(self, data: bytes | memoryview, count: int, device: torch.device | str = "cpu") -> Tensor:
        """Bytes -> (count,) float32, or float64 where that was sent, on `device`. Raises ValueError: bad_length, not_finite."""
        if len(data) != self.size(count):
            raise ValueError("bad_length")
        device = torch.device(device)
        raw, item = np.frombuffer(data, np.uint8), self.layout.itemsize
        values = empty(count, device, self._decoded)
        for start, end in _chunks(count, device):
            part = torch.from_numpy(raw[start * item : end * item].copy()).to(device)
            values[start:end] = part.view(self.layout)
            if not finite(values[start:end]):
                raise ValueError("not_finite")
        return values

    def through(self, values: Tensor, chance: Tensor) -> Tensor:
        """decode(encode(row)) of many rows (…, k) without the bytes, bit for bit; chance (…, 0). Raises ValueError("not_finite")."""
        flat = values.detach().reshape(-1)
        rounded = torch.empty(flat.shape, dtype=self._decoded, device=values.device)
        for start, end in _chunks(flat.numel(), values.device):
            part = torch.empty(end - start, dtype=self.layout, device=values.device)
            _round(flat[start:end], part)
            rounded[start:end] = part
        return rounded.view(values.shape)

    @property
    def _decoded(self) -> torch.dtype:
        return torch.float64 if self.layout == torch.float64 else torch.float32


Float32 = partial(Float, torch.float32)
Float64 = partial(Float, torch.float64)
Fp16 = partial(Float, torch.float16)
Bf16 = partial(Float, torch.bfloat16)


def identity(dtype: torch.dtype = torch.float32) -> Float:
    """Return the quantizer that changes nothing in a vector of this dtype. Raises ValueError: neither float32 nor float64."""
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    return Float(dtype)


def _round(values: Tensor, out: Tensor) -> None:
    """Saturated, and rounded to what `out` holds. Raises ValueError("not_finite")."""
    if not finite(values):
        raise ValueError("not_finite")
    if torch.finfo(values.dtype).max > torch.finfo(out.dtype).max:
        largest = torch.finfo(out.dtype).max
        values = values.clamp(-largest, largest)
    out.copy_(values)


def _chunks(count: int, device: torch.device) -> Iterator[tuple[int, int]]:
    """Stretches that stay in the processor's cache; on an accelerator large ones."""
    many = _CHUNK if device.type == "cpu" else _CHUNK_ELSEWHERE
    for start in range(0, count, many):
        yield start, min(start + many, count)
