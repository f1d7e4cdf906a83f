"""One codec at one length, measured in a process of its own.

    python -m starling.kernels.codec CODEC D REPEAT DEVICE THREADS        JSON on standard output

A process of its own because memory is read off the operating system: what earlier cases left in the allocator would hide what this
one takes. On Linux the high-water mark of resident memory is reset, encoding runs once, and the mark is read; then the same for
decoding. (Python's tracemalloc sees nothing of torch.) On CUDA torch's own allocator is asked.

Every repetition draws a new mask or finds the largest coordinates anew, and nothing is kept that a node may keep from one exchange to
the next, such as the permutation behind a mask. The vector is Gaussian.

Shapes: d parameters, k kept coordinates.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from starling.gossip.api import Quantizer, Selector
from starling.gossip.catalogue import build
from starling.gossip.compress import codec, indices
from starling.gossip.compress.catalogue import SELECTORS, quantizer
from starling.gossip.compress.support import Indices, permutation
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.kernels.child import answer
from starling.kernels.schema import BASELINE, Case
from starling.node.engine import devices

Result = TypeVar("Result")

_WARM_UP = 1 << 16  # coordinates: libraries and threads are there before anything is measured
_RESET_PEAK = "5"


class Coder(Protocol):
    """What is measured."""

    def encode(self, x: Tensor, turn: int) -> bytes:
        """x: (d,) -> payload."""
        ...

    def decode(self, data: bytes) -> tuple[object, Tensor]:
        """Payload -> where, and (k,) values."""
        ...

    def index_bits(self, x: Tensor) -> tuple[int, int] | None:
        """Bits of all indices of x's payload, and k; None if it has none."""
        ...


@dataclass(frozen=True, slots=True)
class Product:
    """As nodes do it."""

    selector: Selector
    quantizer: Quantizer
    dim: int
    device: str

    def encode(self, x: Tensor, turn: int) -> bytes:
        """Select, take, quantise, pack."""
        permutation.cache_clear()
        support = self.selector.select(x, None, turn, turn)
        return codec.encode_from(x, support, self.quantizer, generator(turn))

    def decode(self, data: bytes) -> tuple[object, Tensor]:
        """Unpack and check."""
        permutation.cache_clear()
        return codec.decode(data, self.dim, torch.float32, (self.quantizer,), device=self.device)

    def index_bits(self, x: Tensor) -> tuple[int, int] | None:
        """As coded."""
        support = self.selector.select(x, None, 0, 0)
        if not isinstance(support, Indices):
            return None
        return 8 * indices.size(support.indices.numpy(), self.dim), support.size(self.dim)


@dataclass(frozen=True, slots=True)
class Baseline:
    """What one would write first."""

    k: int

    def encode(self, x: Tensor, turn: int) -> bytes:
        """torch.topk of the magnitudes, then indices and values one after the other."""
        found = x.abs().topk(self.k, sorted=False).indices
        return found.to(torch.int32).cpu().numpy().tobytes() + x[found].cpu().numpy().tobytes()

    def decode(self, data: bytes) -> tuple[object, Tensor]:
        """Both, from the bytes."""
        where = torch.from_numpy(np.frombuffer(data, np.int32, self.k).astype(np.int64))
        return where, torch.from_numpy(np.frombuffer(data, np.float32, self.k, 4 * self.k).copy())

    def index_bits(self, x: Tensor) -> tuple[int, int] | None:
        """int32."""
        return 32 * self.k, self.k


def measure(name: str, dim: int, repeat: int, device: str) -> Case:
    """One case.

    Args:
        name: SELECTOR[:RATIO]+QUANTIZER.
        dim: d.
        repeat: repetitions, of which the fastest counts.
        device: cpu or cuda.

    Raises:
        ConfigError: no such codec.
    """
    warm = coder(name, min(_WARM_UP, dim), device)
    warm.decode(warm.encode(torch.randn(min(_WARM_UP, dim), device=device), 0))
    timed = coder(name, dim, device)
    x = torch.randn(dim, device=device)
    encode_extra, data = peak_extra(device, lambda: timed.encode(x, 0))
    decode_extra, _ = peak_extra(device, lambda: timed.decode(data))
    peaks = [extra for extra in (encode_extra, decode_extra) if extra is not None]
    copy_s = _copy(x, repeat, device)
    encode_s = decode_s = math.inf
    for turn in range(repeat):
        taken_s, data = _timed(device, lambda turn=turn: timed.encode(x, turn))  # type: ignore[misc]
        encode_s = min(encode_s, taken_s)
        decode_s = min(decode_s, _timed(device, lambda data=data: timed.decode(data))[0])  # type: ignore[misc]
    bits = timed.index_bits(x)
    gigabytes = 4 * dim / 1e9
    return Case(
        codec=name,
        d=dim,
        encode_gb_s=gigabytes / encode_s,
        decode_gb_s=gigabytes / decode_s,
        round_trip_gb_s=gigabytes / (encode_s + decode_s),
        bytes_per_parameter=len(data) / dim,
        index_bits_over_entropy=None if bits is None else bits[0] / entropy_bits(dim, bits[1]),
        peak_extra_bytes=max(peaks, default=None),
        memcpy_gb_s=gigabytes / copy_s,
    )


def coder(name: str, dim: int, device: str) -> Coder:
    """What a codec's name stands for, for vectors (dim,).

    Raises:
        ConfigError: nothing.
    """
    selection, plus, quantized = name.partition("+")
    kind, colon, ratio = selection.partition(":")
    if not plus or (colon and not _is_number(ratio)):
        raise ConfigError(f"--codec: must be SELECTOR[:RATIO]+QUANTIZER, got {name!r}; try `--codec mask:0.1+int4`")
    if kind == BASELINE:
        return Baseline(max(1, math.ceil(float(ratio or 1.0) * dim)))
    try:
        selector = build("codec", SELECTORS, kind, {"ratio": float(ratio)} if colon else {})
        return Product(selector, quantizer(quantized, torch.float32), dim, device)
    except ConfigError as error:
        raise ConfigError(f"--codec {name}: {error}") from error


def entropy_bits(dim: int, k: int) -> float:
    """log2 C(d, k)."""
    return (math.lgamma(dim + 1) - math.lgamma(k + 1) - math.lgamma(dim - k + 1)) / math.log(2)


def peak_extra(device: str, run: Callable[[], Result]) -> tuple[int | None, Result]:
    """What a call took at its peak beyond what was there before it, in bytes, and what it returned.

    None where neither CUDA nor Linux tells.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before, result
    reset = Path("/proc/self/clear_refs")
    if not os.access(reset, os.W_OK):
        return None, run()
    gc.collect()
    trim = getattr(
        ctypes.CDLL(None), "malloc_trim", None
    )  # what was freed and kept would not be counted when it is used again
    if trim is not None:
        trim(0)
    reset.write_text(_RESET_PEAK)
    before = _status("VmRSS")
    result = run()
    return _status("VmHWM") - before, result


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _copy(x: Tensor, repeat: int, device: str) -> float:
    target = torch.zeros_like(x)
    return min(_timed(device, lambda: target.copy_(x))[0] for _ in range(repeat))


def _timed(device: str, run: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds, and the result."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    result = run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, result


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def main() -> int:
    """Measure what the arguments say; 2 for what is not to be had."""
    name, dim, repeat, device, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    return answer(lambda: measure(name, int(dim), int(repeat), devices.device(device)))


if __name__ == "__main__":
    sys.exit(main())
