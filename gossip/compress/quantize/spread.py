"""Two bits a value: a sign, and which of two magnitudes that its bucket names is nearer, its least or its largest.

Made for values that a selector has kept because they are large: their magnitudes lie between two numbers well away from 0, where a grid
around 0 (`kinds.integer` with two bits) would lose most of what was selected.

Wire: the least magnitudes l of the m buckets, then their largest h (bfloat16), then the codes without gaps (`bits`); unused bits of the
last byte are 0. The lower bit of a code is 1 for h, the upper 1 for a negative number. What decodes to 0 has code 0, the largest value
of a bucket is at h and the least at l, and both codes of one magnitude are never used: so values have one encoding.

Shapes: k values, m buckets of B values.
"""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from starling.gossip.bounds import parameters
from starling.gossip.compress.buffers import empty
from starling.gossip.compress.quantize import bits
from starling.gossip.compress.quantize.buckets import Bucket
from starling.gossip.compress.quantize.steps import to_wire

BUCKET_OF_KEPT = 256
"""B: four bytes of magnitudes are then an eighth of a bit a value. About what a chunk of 4,096 keeps at 5 %."""
_WIDTH = 2
_ROUNDING = 2.0**-8  # relative rounding error of a magnitude stored as bfloat16
_SMALLEST, _LARGEST = 0x0080, 0x7F7F  # bits of the least normal and the largest finite bfloat16
_AT_ONCE = 1 << 19  # values


@parameters
class Spread2:
    """The sign and the nearer of two magnitudes l and h, the smallest and the largest of the bucket.

    A value errs by at most (h − l)/(h + l) of itself, l and h as they are sent, or by 2⁻⁸ where it lies outside of them for their rounding.
    To the nearest and an odd function: draws nothing, so all who receive a message receive the same, and antisymmetry survives it.
    Magnitudes below the least normal bfloat16, 2⁻¹²⁶, become 0.

    Source: the two-bit setting of Sarfi et al. 2025, SparseLoCo (arXiv:2508.15706). Deviation: magnitudes per bucket of kept values, and
    nearest of two levels between the least and the largest.

    Args:
        bucket: B, values that share two magnitudes; a multiple of 8 in [8, 4096].
    """

    bucket: Bucket = BUCKET_OF_KEPT
    code: ClassVar[int] = 22

    def __post_init__(self) -> None:
        if self.bucket % 8:
            raise ValueError(f"bucket must be a multiple of 8 in [8, 4096], got {self.bucket}")

    @property
    def omega(self) -> float:
        """Bound of the relative squared error: the largest value is off by its rounding, all others lie in the middle of 0 and h."""
        middle = (self.bucket - 1) * ((1 + _ROUNDING) / 2) ** 2
        return (_ROUNDING**2 + middle) / (1 + middle)

    def size(self, count: int) -> int:
        """Return the bytes of `count` values."""
        return 4 * self._buckets(count) + -(-count * _WIDTH // 8)

    def draws(self, count: int) -> int:
        """Return 0: it draws nothing."""
        return 0

    def encode(self, values: Tensor, generator: Generator) -> bytes:
        """Map (k,) finite -> bytes. Draws nothing. Raises ValueError("not_finite")."""
        values, count = values.detach(), values.numel()
        buckets = self._buckets(count)
        levels = torch.empty(2, buckets, dtype=torch.int16, device=values.device)
        packed = torch.empty(buckets * self.bucket * _WIDTH // 8, dtype=torch.uint8, device=values.device)
        for start, end in self._parts(buckets):
            rows, absent = self._rows(values[None, start * self.bucket : end * self.bucket])
            low, high, codes = _coded(rows, absent)
            levels[0, start:end], levels[1, start:end] = to_wire(low), to_wire(high)
            spare = torch.empty(codes.numel() // 8, dtype=torch.int64, device=values.device)
            bits.pack(codes.view(-1), _WIDTH, spare, packed[start * self.bucket // 4 : end * self.bucket // 4])
        return levels.cpu().numpy().tobytes() + packed.cpu().numpy().tobytes()[: -(-count * _WIDTH // 8)]

    def decode(self, data: bytes | memoryview, count: int, device: torch.device | str = "cpu") -> Tensor:
        """Bytes -> (count,) float32 on `device`. Raises ValueError: bad_length, bad_scale, bad_code, bad_padding."""
        if len(data) != self.size(count):
            raise ValueError("bad_length")
        buckets = self._buckets(count)
        raw = np.frombuffer(data, np.uint8)
        sent = raw[: 4 * buckets].view("<u2").reshape(2, buckets)
        if not ((sent == 0) | ((sent >= _SMALLEST) & (sent <= _LARGEST))).all() or (sent[0] > sent[1]).any():
            raise ValueError("bad_scale")
        low, high = torch.from_numpy((sent.astype(np.uint32) << 16).view(np.float32))
        whole = np.zeros(buckets * self.bucket // 4, np.uint8)
        whole[: raw.size - 4 * buckets] = raw[4 * buckets :]
        packed, values = torch.from_numpy(whole), empty(count, torch.device("cpu"))
        for start, end in self._parts(buckets):
            codes = torch.empty(end - start, self.bucket, dtype=torch.int8)
            spare = torch.empty(codes.numel() // 8, dtype=torch.int64)
            bits.unpack(packed[start * self.bucket // 4 : end * self.bucket // 4], _WIDTH, spare, codes.view(-1))
            target = values[start * self.bucket : end * self.bucket]
            absent = _absent(codes.shape, target.numel(), 1, codes.device)
            self._check(codes, low[start:end], high[start:end], absent)
            target.copy_(_decoded(codes, low[start:end], high[start:end]).view(-1)[: target.numel()])
        return values.to(device)

    def through(self, values: Tensor, chance: Tensor) -> Tensor:
        """decode(encode(row)) of many rows (…, k), finite, without the bytes, bit for bit -> (…, k) float32; `chance` is not used.

        Raises ValueError: "not_finite".
        """
        if values.numel() == 0:
            return torch.empty(values.shape, device=values.device)
        flat = values.detach().reshape(-1, values.shape[-1])
        rows, absent = self._rows(flat)
        low, high, codes = _coded(rows, absent)
        return _decoded(codes, low, high).view(len(flat), -1)[:, : values.shape[-1]].reshape(values.shape)

    def _check(self, codes: Tensor, low: Tensor, high: Tensor, absent: Tensor | None) -> None:
        """Raises ValueError: codes (r, B) of magnitudes (r,) that `encode` never gives."""
        if absent is not None and bool(codes[absent].any()):
            raise ValueError("bad_padding")
        at_high, apart = (codes & 1).bool(), low < high
        at_low = ~at_high if absent is None else ~(at_high | absent)
        used = at_high.any(1) == apart  # a single magnitude has one code, that of the largest value
        used &= at_low.any(1)
        used &= ~((low == 0) & (codes == 2).any(1))
        if not bool(used.all()):
            raise ValueError("bad_code")

    def _rows(self, flat: Tensor) -> tuple[Tensor, Tensor | None]:
        """Map (n, k) -> buckets (n·m, B) float32 with zeros behind each row, and where those are; None: nowhere.

        Raises ValueError: "not_finite".
        """
        n, count = flat.shape
        if not bool(torch.isfinite(flat).all()):
            raise ValueError("not_finite")
        largest = torch.finfo(torch.float32).max
        flat = flat.clamp(-largest, largest).to(torch.float32) if flat.dtype == torch.float64 else flat.float()
        buckets = self._buckets(count)
        rows = torch.nn.functional.pad(flat, (0, buckets * self.bucket - count)).view(-1, self.bucket)
        return rows, _absent(rows.shape, count, n, rows.device)

    def _parts(self, buckets: int) -> Iterator[tuple[int, int]]:
        """Yield first and last bucket of each part of a long vector."""
        many = max(1, _AT_ONCE // self.bucket)
        return ((start, min(start + many, buckets)) for start in range(0, buckets, many))

    def _buckets(self, count: int) -> int:
        return -(-count // self.bucket)


def _absent(shape: torch.Size, count: int, rows: int, device: torch.device) -> Tensor | None:
    """Return a mask of the buckets' places beyond the `count` values of one of `rows` vectors; None if there is none."""
    each = shape.numel() // rows
    if each == count:
        return None
    return (torch.arange(each, device=device) >= count).expand(rows, -1).reshape(shape)


def _coded(rows: Tensor, absent: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Map buckets (m, B) to l and h (m,) as they are sent, and codes (m, B) int8."""
    magnitude = rows.abs()
    least = (magnitude if absent is None else magnitude.masked_fill(absent, torch.inf)).amin(1, keepdim=True)
    largest = magnitude.amax(1, keepdim=True)
    low, high = _bfloat16(least.view(-1)), _bfloat16(largest.view(-1))
    near_high = (magnitude - low[:, None]) > (high[:, None] - magnitude)
    near_high &= magnitude > least  # ties and subnormal numbers too: values have one encoding
    near_high |= magnitude == largest
    near_high &= (low < high)[:, None]
    negative = (rows < 0) & (near_high | (low > 0)[:, None])
    codes = near_high.to(torch.int8).add_(negative, alpha=2)
    return low, high, codes if absent is None else codes.masked_fill_(absent, 0)


def _decoded(codes: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Map codes (m, B) to (m, B) float32."""
    magnitude = torch.where((codes & 1).bool(), high[:, None], low[:, None])
    return torch.where((codes & 2).bool(), -magnitude, magnitude)


def _bfloat16(magnitude: Tensor) -> Tensor:
    """Return the nearest bfloat16 of (m,) float32 >= 0, of two the even one: finite, and 0 for what is not normal."""
    raw = magnitude.contiguous().view(torch.int32)
    upper = (raw + 0x7FFF + ((raw >> 16) & 1)) >> 16
    upper = upper.clamp(max=_LARGEST).masked_fill(raw < _SMALLEST << 16, 0)
    return (upper << 16).view(torch.float32)
