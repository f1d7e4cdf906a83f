"""Numbers >= 0 by the logarithm of their share of a bucket's largest: four bits hold eight decades.

A mean of squared gradients spans that many. On a linear grid its small numbers become 0, and who divides by the root of one takes a step of
any length.

Wire: m largest numbers (bfloat16), then codes of four bits without gaps; unused bits of the last byte are 0.

Shapes: k values, m buckets, r of a chunk.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from starling.gossip.compress.quantize import bits, steps
from starling.gossip.vector import finite

BUCKET = 256
BASE = 4.0
ZERO = 15  # the code of 0, and of what is below the least level
_LEAST = BASE ** -(ZERO - 1)
_CHUNK = 1 << 10  # buckets at a time


@dataclass(frozen=True, slots=True)
class Logarithm:
    """Codes l = 0 … 14 stand for top·4^−l, 15 for 0; l is rounded by chance, so that the logarithm is met in expectation.

    Args:
        bucket: values that share a largest number, a multiple of 8.
    """

    WIDTH: ClassVar[int] = 4
    bucket: int = BUCKET

    def size(self, count: int) -> int:
        """Return the bytes that `count` values take."""
        return 2 * -(-count // self.bucket) + -(-count * self.WIDTH // 8)

    def encode(self, values: Tensor, generator: Generator) -> bytes:
        """Return the bytes of values (k,), finite and >= 0. Raises ValueError: "not_finite"."""
        if not finite(values):
            raise ValueError("not_finite")
        tops: list[Tensor] = []
        codes: list[Tensor] = []
        left = values.numel()
        for rows in self._rows(values):
            top, divisor = steps.least_steps(rows.amax(1), _LEAST, 1.0)
            level = -(rows / divisor[:, None]).log2_() / 2  # log to the base 4; inf where a value is 0
            level += torch.rand(rows.shape, generator=generator).to(rows.device)
            code = level.nan_to_num_(nan=ZERO, posinf=ZERO).floor_().clamp_(0, ZERO).to(torch.int8)
            tops.append(steps.to_wire(top).cpu())
            codes.append(_packed(code.view(-1), left).cpu())
            left -= code.numel()
        return b"".join(each.numpy().tobytes() for each in (*tops, *codes))

    def decode(self, data: bytes | memoryview, count: int) -> Tensor:
        """Return (count,) float32 of bytes. Raises ValueError: bad_length, bad_scale, bad_padding."""
        if len(data) != self.size(count):
            raise ValueError("bad_length")
        buckets = -(-count // self.bucket)
        raw = np.frombuffer(data, np.uint8)
        top = steps.from_wire(raw[: 2 * buckets], _LEAST, 1.0, torch.device("cpu"))
        packed = raw[2 * buckets :]
        if count % 2 and packed[-1] >> 4:
            raise ValueError("bad_padding")
        shares = torch.tensor([*(BASE**-level for level in range(ZERO)), 0.0])
        pairs = torch.stack((shares.repeat(16), shares.repeat_interleave(16)), 1)  # values of the 256 bytes, the lowest bits first
        values = torch.index_select(pairs, 0, torch.from_numpy(packed.astype(np.int32))).view(-1)
        whole = count // self.bucket
        values[: whole * self.bucket].view(-1, self.bucket).mul_(top[:whole, None])
        values[whole * self.bucket :].mul_(top[-1:])
        return values[:count]

    def _rows(self, values: Tensor) -> Iterator[Tensor]:
        """Yield (r, bucket) float32, zeros behind the last value."""
        for start in range(0, values.numel(), _CHUNK * self.bucket):
            part = values[start : start + _CHUNK * self.bucket].detach().float()
            yield torch.nn.functional.pad(part, (0, -part.numel() % self.bucket)).view(-1, self.bucket)


def _packed(codes: Tensor, count: int) -> Tensor:
    """Return the bytes (ceil(count/2),) uint8 of the first `count` of codes (n,) int8, which are changed."""
    codes[count:] = 0
    out = torch.empty(codes.numel() // 2, dtype=torch.uint8, device=codes.device)
    bits.pack(codes, Logarithm.WIDTH, torch.empty(codes.numel() // 8, dtype=torch.int64, device=codes.device), out)
    return out[: -(-min(count, codes.numel()) // 2)]
