"""Quantizers that cut the values into buckets, send one step per bucket, and a code for each value.

Values become numbers g of a grid, nearest to value/step; decode returns g·step. Wire: m steps (bfloat16), then the codes
without gaps (`bits`); what is left of the last byte is 0.

Work goes through the vector in chunks that stay in the processor's cache, all in the same few buffers, each pass on all of
torch's threads. So what bounds it on a CPU is arithmetic in cache, some 30 passes of 0.02 to 0.07 ns a value on two cores for four bits by
chance and 12 to decode them, a quarter of that for the dither, and not memory. On an accelerator a chunk is
large, so that there are few kernels to start, and only packed bytes leave it.

Shapes: k values, m buckets of B values, r buckets of one chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Generator, Tensor

from gossip.compress.memory import empty, view
from gossip.compress.quantize import bits, dither, steps
from gossip.compress.quantize.grid import Grid

BUCKET = 64
_LARGEST_FLOAT = torch.finfo(torch.float32).max
_CHUNK = 1 << 18
_CHUNK_ELSEWHERE = 1 << 25


@dataclass(frozen=True, slots=True)
class Bucketed:
    """Codes of a grid, and a step for each bucket.

    Args:
        grid: which numbers a value can become.
        bucket: B, values that share a step, a multiple of 8 in [8, 4096]. It is not on the wire: both ends must agree on it.
    """

    grid: Grid
    bucket: int = BUCKET

    def __post_init__(self) -> None:
        if not 8 <= self.bucket <= 4096 or self.bucket % 8:  # codes fill whole bytes, and sums have one order
            raise ValueError(f"bucket must be a multiple of 8 in [8, 4096], got {self.bucket}")

    @property
    def code(self) -> int:
        """Its number on the wire."""
        return self.grid.code

    @property
    def omega(self) -> float:
        """Bound of the relative squared error, in expectation where chance rounds."""
        return self.grid.omega(self.bucket)

    def size(self, count: int) -> int:
        """Bytes that `count` values take."""
        return 2 * self._buckets(count) + self._code_bytes(count)

    def draws(self, count: int) -> int:
        """Words of chance that one row takes: 1, or 0 without chance."""
        return int(self.grid.by_chance)

    def encode(self, values: Tensor, generator: Generator) -> bytes:
        """(k,) finite -> bytes. Draws one word, or nothing without chance. Raises ValueError("not_finite")."""
        values, device, count = values.detach(), values.device, values.numel()
        buckets, per_bucket = self._buckets(count), self._code_bytes(self.bucket)
        word = dither.draw(generator, device) if self.grid.by_chance else None
        sent = torch.empty(buckets, dtype=torch.int16, device=device)
        packed = torch.empty(buckets * per_bucket, dtype=torch.uint8, device=device)
        for start, end, work, spare in self._chunks(buckets, device):
            _load(values[start * self.bucket : end * self.bucket], work)
            number = torch.arange(start, end, device=device)
            step, codes = self._round(work, spare, number, count, word)
            sent[start:end] = steps.to_wire(step)
            bits.pack(codes.view(-1), self.grid.width, packed[start * per_bucket : end * per_bucket])
        return b"".join((sent.cpu().numpy().data, packed.cpu().numpy()[: self._code_bytes(count)].data))

    def decode(self, data: bytes | memoryview, count: int, device: torch.device | str = "cpu") -> Tensor:
        """Bytes -> (count,) float32 on `device`. Raises ValueError: bad_length, bad_scale, bad_code, bad_padding."""
        if len(data) != self.size(count):
            raise ValueError("bad_length")
        device, grid = torch.device(device), self.grid
        buckets, per_bucket = self._buckets(count), self._code_bytes(self.bucket)
        raw = view(data)
        step = steps.from_wire(raw[: 2 * buckets], grid.least, grid.largest, device)
        packed = raw[2 * buckets :]
        values = empty(count, device)
        for start, end, work, spare in self._chunks(buckets, device):
            codes = torch.empty(work.shape, dtype=torch.int8, device=device)
            part = _upload(packed[start * per_bucket : end * per_bucket], (end - start) * per_bucket, device)
            bits.unpack(part, grid.width, codes.view(-1))
            target = values[start * self.bucket : end * self.bucket]
            if bool(codes.view(-1)[target.numel() :].any()):
                raise ValueError("bad_padding")
            grid.values(codes, work)
            peak = torch.abs(work, out=spare).amax(1)
            if not bool(grid.plausible(work, peak, step[start:end]).all()):
                raise ValueError("bad_code")
            target.copy_(work.mul_(step[start:end].unsqueeze(1)).view(-1)[: target.numel()])
        return values

    def through(self, values: Tensor, chance: Tensor) -> Tensor:
        """decode(encode(row)) of many rows without the bytes, bit for bit.

        Args:
            values: (…, k) finite.
            chance: (…, draws(k)) int64 in [0, 2**62): what `encode` draws from its generator, for each row.

        Returns:
            (…, k) float32.

        Raises:
            ValueError: "not_finite".
        """
        count, device = values.shape[-1], values.device
        per_row = max(self._buckets(count), 1)
        flat = torch.nn.functional.pad(values.detach(), (0, -count % self.bucket)).reshape(-1)
        words = chance.to(device).reshape(-1) if self.grid.by_chance else None
        rounded = torch.empty(flat.numel() // self.bucket, self.bucket, device=device)
        for start, end, work, spare in self._chunks(rounded.shape[0], device):
            _load(flat[start * self.bucket : end * self.bucket], work)
            number = torch.arange(start, end, device=device)
            word = None if words is None else words[number // per_row]
            step, codes = self._round(work, spare, number % per_row, count, word)
            self.grid.values(codes, work)
            torch.mul(work, step.unsqueeze(1), out=rounded[start:end])
        return rounded.view(*values.shape[:-1], -1)[..., :count] if count else torch.empty(values.shape, device=device)

    def _round(
        self, work: Tensor, spare: Tensor, number: Tensor, count: int, word: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Values -> steps (r,), codes (r, B).

        Args:
            work: (r, B) the values; changed.
            spare: (r, B); changed.
            number: (r,) the bucket's number in its vector.
            count: k; the last bucket of a vector may have fewer values than B.
            word: (r,) or (1,), or None if nothing is rounded by chance.
        """
        grid = self.grid
        torch.abs(work, out=spare)
        peak = spare.amax(1)
        if not bool(torch.isfinite(peak).all()):
            raise ValueError("not_finite")
        length = (count - number * self.bucket).clamp_(max=self.bucket)
        step = steps.least_steps(grid.measure(spare, peak, length), grid.least, grid.largest)
        work /= torch.where(step > 0, step, math.inf).unsqueeze(1)
        if word is not None:
            work.add_(dither.dither(word, number, spare), alpha=dither.UNIT)
        return step, grid.codes(work)

    def _chunks(self, buckets: int, device: torch.device) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """First and last bucket of each chunk, and two buffers (r, B) that are the same ones each time."""
        many = max(1, (_CHUNK if device.type == "cpu" else _CHUNK_ELSEWHERE) // self.bucket)
        work, spare = torch.empty(2, min(many, buckets), self.bucket, device=device)
        for start in range(0, buckets, many):
            end = min(start + many, buckets)
            yield start, end, work[: end - start], spare[: end - start]

    def _buckets(self, count: int) -> int:
        return -(-count // self.bucket)

    def _code_bytes(self, count: int) -> int:
        return -(-count * self.grid.width // 8)


def _load(part: Tensor, work: Tensor) -> None:
    """Some values into a chunk's buffer, and zeros up to its end. Raises ValueError("not_finite")."""
    if part.dtype == torch.float64:
        if not bool(torch.isfinite(part).all()):
            raise ValueError("not_finite")
        part = part.clamp(-_LARGEST_FLOAT, _LARGEST_FLOAT)
    flat = work.view(-1)
    flat[: part.numel()].copy_(part)
    flat[part.numel() :].zero_()


def _upload(part: npt.NDArray[np.uint8], length: int, device: torch.device) -> Tensor:
    """Packed bytes, and zeros up to (length,) uint8, on `device`."""
    held = np.empty(length, np.uint8)
    held[: part.size] = part
    held[part.size :] = 0
    return torch.from_numpy(held).to(device)
