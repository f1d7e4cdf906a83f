"""Quantizers that cut the values into buckets, send one step per bucket, and a code for each value.

Values become numbers g of a grid, nearest to value/step; decode returns g·step. Wire: m steps (bfloat16), then the codes
without gaps (`bits`); unused bits of the last byte are 0.

Vectors are processed in chunks that stay in the processor's cache, all in the same few buffers. The cost on a CPU is the number of
passes: of 1.3 ns a value to encode four bits by chance, 0.5 make the dither. On an accelerator a chunk is larger, so that there are
fewer kernels to start, and only packed bytes leave it.

Shapes: k values, m buckets of B values, r buckets of one chunk.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Meta
from torch import Generator, Tensor

from starling.gossip.compress.buffers import empty
from starling.gossip.compress.quantize import bits, dither, steps
from starling.gossip.compress.quantize.grid import Grid
from starling.gossip.vector import finite

BUCKET = 64
Bucket = Annotated[int, Meta(ge=8, le=4096)]
_LARGEST_FLOAT = torch.finfo(torch.float32).max
_CHUNK = 1 << 19
_CHUNK_ELSEWHERE = 1 << 22


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Memory for one chunk. `codes` share the memory of `words`, which have been used by then."""

    BYTES: ClassVar[int] = 12  # a value

    work: Tensor  # (r, B) float32
    spare: Tensor  # (r, B) float32
    words: Tensor  # (r, B/4) int64
    spare_words: Tensor  # (r·B/4,) int64
    codes: Tensor  # (r, B) int8

    @staticmethod
    def within(memory: Tensor, buckets: int, bucket: int) -> "_Buffers":
        """Cut the buffers out of (>= 12·r·B,) uint8."""
        size = buckets * bucket
        words, spare_words = (memory[start : start + 2 * size].view(torch.int64) for start in (8 * size, 10 * size))
        return _Buffers(
            work=memory[: 4 * size].view(torch.float32).view(buckets, bucket),
            spare=memory[4 * size : 8 * size].view(torch.float32).view(buckets, bucket),
            words=words.view(buckets, -1),
            spare_words=spare_words,
            codes=memory[8 * size : 9 * size].view(torch.int8).view(buckets, bucket),
        )


@dataclass(frozen=True, slots=True)
class Bucketed:
    """Codes of a grid, and a step for each bucket."""

    grid: Grid  # the numbers to which a value is rounded
    bucket: int = BUCKET  # B, values that share a step, a multiple of 8 in [8, 4096]. It is not on the wire: both ends must agree on it

    def __post_init__(self) -> None:
        if not 8 <= self.bucket <= 4096 or self.bucket % 8:  # so codes fill whole bytes, and sums are added in the same order everywhere
            raise ValueError(f"bucket must be a multiple of 8 in [8, 4096], got {self.bucket}")

    @property
    def code(self) -> int:
        """Return its number on the wire."""
        return self.grid.code

    @property
    def omega(self) -> float:
        """Bound of the relative squared error, in expectation where chance rounds."""
        return self.grid.omega(self.bucket)

    def size(self, count: int) -> int:
        """Return the bytes of `count` values."""
        return 2 * self._buckets(count) + self._code_bytes(count)

    def draws(self, count: int) -> int:
        """Words of chance that one row takes: 1, or 0 without chance."""
        return int(self.grid.by_chance)

    def encode(self, values: Tensor, generator: Generator) -> bytes:
        """Map (k,) finite -> bytes. Draws one word, or nothing without chance. Raises ValueError("not_finite")."""
        return b"".join(self.pieces(values, generator))

    def pieces(self, values: Tensor, generator: Generator) -> tuple[memoryview, ...]:
        """Return the parts of `encode`, for callers that add others: joining copies everything."""
        values, device, count = values.detach(), values.device, values.numel()
        buckets, per_bucket = self._buckets(count), self._code_bytes(self.bucket)
        word = dither.draw(generator, device) if self.grid.by_chance else None
        sent = torch.empty(buckets, dtype=torch.int16, device=device)
        packed = empty(buckets * per_bucket, device, torch.uint8)
        for start, end, buffers in self._chunks(buckets, device):
            number = torch.arange(start, end, device=device)
            step = self._round(values[start * self.bucket : end * self.bucket], buffers, number, count, word)
            sent[start:end] = steps.to_wire(step)
            target = packed[start * per_bucket : end * per_bucket]
            bits.pack(buffers.codes.view(-1), self.grid.width, buffers.spare_words[: buffers.codes.numel() // 8], target)
        return sent.cpu().numpy().data, packed.cpu().numpy()[: self._code_bytes(count)].data

    def decode(self, data: bytes | memoryview, count: int, device: torch.device | str = "cpu") -> Tensor:
        """Bytes -> (count,) float32 on `device`. Raises ValueError: bad_length, bad_scale, bad_code, bad_padding."""
        if len(data) != self.size(count):
            raise ValueError("bad_length")
        device, grid = torch.device(device), self.grid
        buckets, per_bucket = self._buckets(count), self._code_bytes(self.bucket)
        raw = np.frombuffer(data, np.uint8)
        step = steps.from_wire(raw[: 2 * buckets], grid.least, grid.largest, device)
        packed = raw[2 * buckets :]
        values = empty(count, device)
        for start, end, buffers in self._chunks(buckets, device):
            part = _upload(packed[start * per_bucket : end * per_bucket], (end - start) * per_bucket, device)
            bits.unpack(part, grid.width, buffers.spare_words[: buffers.codes.numel() // 8], buffers.codes.view(-1))
            target = values[start * self.bucket : end * self.bucket]
            work = buffers.work
            if target.numel() < work.numel() and bool(buffers.codes.view(-1)[target.numel() :].any()):
                raise ValueError("bad_padding")
            grid.values(buffers.codes, work)
            peak = torch.abs(work, out=buffers.spare).amax(1)
            if not bool(grid.plausible(work, peak, step[start:end]).all()):
                raise ValueError("bad_code")
            if target.numel() == work.numel():
                torch.mul(work, step[start:end].unsqueeze(1), out=target.view(work.shape))
            else:
                target.copy_(work.mul_(step[start:end].unsqueeze(1)).view(-1)[: target.numel()])
        return values

    def through(self, values: Tensor, chance: Tensor) -> Tensor:
        """decode(encode(row)) of many rows (…, k), finite, without the bytes, bit for bit -> (…, k) float32.

        `chance` (…, draws(k)) int64 in [0, 2**62) is what `encode` draws from its generator, for each row. Raises ValueError: "not_finite".
        """
        count, device = values.shape[-1], values.device
        if values.numel() == 0:
            return torch.empty(values.shape, device=device)
        per_row = self._buckets(count)
        flat = _padded(values.detach(), per_row * self.bucket).view(-1)
        words = chance.to(device).reshape(-1) if self.grid.by_chance else None
        rounded = empty(flat.numel(), device).view(-1, self.bucket)
        for start, end, buffers in self._chunks(rounded.shape[0], device):
            number = torch.arange(start, end, device=device)
            word = None if words is None else words[number // per_row]
            part = flat[start * self.bucket : end * self.bucket]
            step = self._round(part, buffers, number % per_row, count, word)
            self.grid.values(buffers.codes, buffers.work)
            torch.mul(buffers.work, step.unsqueeze(1), out=rounded[start:end])
        return rounded.view(*values.shape[:-1], -1)[..., :count]

    def _round(self, values: Tensor, buffers: _Buffers, number: Tensor, count: int, word: Tensor | None) -> Tensor:
        """Values (<= r·B,), finite -> steps (r,), and the codes in `buffers`.

        `number` (r,) is each bucket's in its vector of `count` values, whose last bucket may have fewer than B; `word` (r,) or (1,), or
        None if nothing is rounded by chance. Raises ValueError: "not_finite".
        """
        grid, work, spare = self.grid, buffers.work, buffers.spare
        source = _float32(values, work)
        torch.abs(source, out=spare)
        peak = spare.amax(1)
        if not math.isfinite(float(peak.amax())):
            raise ValueError("not_finite")
        length: Tensor | int = self.bucket
        if count % self.bucket:
            length = (count - number * self.bucket).clamp_(max=self.bucket)
        step, divisor = steps.least_steps(grid.measure(spare, peak, length), grid.least, grid.largest)
        torch.div(source, divisor.unsqueeze(1), out=work)
        if word is not None:
            noise = dither.dither(word, number, buffers.words, buffers.spare_words.view_as(buffers.words))
            work.add_(spare.copy_(noise), alpha=dither.UNIT)
        grid.codes(work, buffers.codes)
        return step

    def _chunks(self, buckets: int, device: torch.device) -> Iterator[tuple[int, int, _Buffers]]:
        """Yield first and last bucket of each chunk, with buffers that are reused."""
        many = max(1, (_CHUNK if device.type == "cpu" else _CHUNK_ELSEWHERE) // self.bucket)
        memory = empty(min(many, buckets) * self.bucket * _Buffers.BYTES, device, torch.uint8)
        for start in range(0, buckets, many):
            end = min(start + many, buckets)
            yield start, end, _Buffers.within(memory, end - start, self.bucket)

    def _buckets(self, count: int) -> int:
        return -(-count // self.bucket)

    def _code_bytes(self, count: int) -> int:
        return -(-count * self.grid.width // 8)


def _padded(values: Tensor, length: int) -> Tensor:
    """Map (…, k) -> (n, length), contiguous, with zeros behind each row."""
    rows = values.reshape(-1, values.shape[-1])
    if rows.shape[1] == length:
        return rows.contiguous()
    padded = empty(rows.shape[0] * length, rows.device, rows.dtype).view(-1, length)
    padded[:, : rows.shape[1]] = rows
    padded[:, rows.shape[1] :] = 0
    return padded


def _float32(values: Tensor, buffer: Tensor) -> Tensor:
    """Values as (r, B) float32 with zeros up to the end: themselves if they are that already, else in the buffer.

    Raises ValueError: "not_finite".
    """
    if values.dtype == torch.float32 and values.numel() == buffer.numel() and values.is_contiguous():
        return values.view_as(buffer)
    if values.dtype == torch.float64:
        if not finite(values):
            raise ValueError("not_finite")
        values = values.clamp(-_LARGEST_FLOAT, _LARGEST_FLOAT)
    flat = buffer.view(-1)
    flat[: values.numel()].copy_(values)
    flat[values.numel() :].zero_()
    return buffer


def _upload(part: npt.NDArray[np.uint8], length: int, device: torch.device) -> Tensor:
    """Packed bytes, and zeros up to (length,) uint8, on `device`."""
    held = np.empty(length, np.uint8)
    held[: part.size] = part
    held[part.size :] = 0
    return torch.from_numpy(held).to(device)
