"""Measure one codec at one length, in a separate process.

    python -m starling.kernels.codec CODEC D REPEAT DEVICE THREADS BESIDE        JSON on standard output

A process of its own because memory is read off the operating system: what earlier cases left in the allocator would hide what this
one takes. On Linux the high-water mark of resident memory is reset, encoding runs once, and the mark is read; then the same for
decoding. (Python's tracemalloc sees nothing of torch.) On CUDA torch's own allocator is asked.

Every repetition draws a new mask or finds the largest coordinates anew; nothing is cached that a node may cache from one exchange
to the next,
such as the permutation of a mask. The vector is Gaussian.

Beside busy processes a fastest repetition tells of the moment when they slept, so round trips there are compared by their medians.

Shapes: d parameters, k kept coordinates.
"""

import ctypes
import gc
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from starling.gossip.api import Quantizer, Selector
from starling.gossip.compress import codec, indices
from starling.gossip.compress.catalogue import SELECTORS, quantizer
from starling.gossip.compress.support import Indices, permutation
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.kernels import company
from starling.kernels.child import answer
from starling.kernels.schema import BASELINE, Case
from starling.node.engine import devices

Result = TypeVar("Result")

_WARM_UP = 1 << 16  # coordinates: libraries and threads are there before anything is measured
_RESET_PEAK = "5"


@dataclass(frozen=True, slots=True)
class Product:
    """A codec as nodes use it."""

    selector: Selector
    quantizer: Quantizer
    dim: int
    device: str

    def encode(self, x: Tensor, seq: int) -> bytes:
        """Encode x (d,); return the payload."""
        permutation.cache_clear()
        support = self.selector.select(x, None, seq, seq)
        return codec.encode_from(x, support, self.quantizer, generator(seq))

    def decode(self, data: bytes) -> tuple[object, Tensor]:
        """Check and decode a payload; return the support and (k,) values."""
        permutation.cache_clear()
        return codec.decode(data, self.dim, torch.float32, (self.quantizer,), device=self.device)

    def index_bits(self, x: Tensor) -> tuple[int, int] | None:
        """Return the bits of all encoded indices of x's payload, and k; None if it has none."""
        support = self.selector.select(x, None, 0, 0)
        if not isinstance(support, Indices):
            return None
        return 8 * indices.size(support.indices.numpy(), self.dim), support.size(self.dim)


@dataclass(frozen=True, slots=True)
class Baseline:
    """The naive codec with the same methods: torch.topk of the magnitudes, then int32 indices and values."""

    k: int

    def encode(self, x: Tensor, seq: int) -> bytes:
        indices = x.abs().topk(self.k, sorted=False).indices
        return indices.to(torch.int32).cpu().numpy().tobytes() + x[indices].cpu().numpy().tobytes()

    def decode(self, data: bytes) -> tuple[object, Tensor]:
        where = torch.from_numpy(np.frombuffer(data, np.int32, self.k).astype(np.int64))
        return where, torch.from_numpy(np.frombuffer(data, np.float32, self.k, 4 * self.k).copy())

    def index_bits(self, x: Tensor) -> tuple[int, int]:
        return 32 * self.k, self.k


def measure(name: str, dim: int, repeat: int, device: str, beside: int = 0) -> Case:
    """Return the codec SELECTOR[:RATIO]+QUANTIZER at length d on "cpu" or "cuda"; the fastest repetition counts. `beside`: busy processes.

    Raises ConfigError: no such codec.
    """
    warm = coder(name, min(_WARM_UP, dim), device)
    warm.decode(warm.encode(torch.randn(min(_WARM_UP, dim), device=device), 0))
    timed, x = coder(name, dim, device), torch.randn(dim, device=device)
    encode_extra, data = peak_extra(device, lambda: timed.encode(x, 0))
    decode_extra, _ = peak_extra(device, lambda: timed.decode(data))
    target = torch.zeros_like(x)
    copy_s = min(_timed(device, lambda: target.copy_(x))[0] for _ in range(repeat))
    times = [_round_trip(timed, x, seq) for seq in range(repeat)]
    encode_s, decode_s = (min(each) for each in zip(*times, strict=True))
    beside_s = None
    if beside:
        with company.busy(beside):
            beside_s = median(sum(_round_trip(timed, x, seq)) for seq in range(repeat))
    bits, gigabytes = timed.index_bits(x), 4 * dim / 1e9
    return Case(
        codec=name,
        d=dim,
        encode_gb_s=gigabytes / encode_s,
        decode_gb_s=gigabytes / decode_s,
        round_trip_gb_s=gigabytes / (encode_s + decode_s),
        bytes_per_parameter=len(data) / dim,
        index_bits_over_entropy=None if bits is None else bits[0] / entropy_bits(dim, bits[1]),
        peak_extra_bytes=max((extra for extra in (encode_extra, decode_extra) if extra is not None), default=None),
        memcpy_gb_s=gigabytes / copy_s,
        beside=beside,
        beside_gb_s=None if beside_s is None else gigabytes / beside_s,
        beside_over_quiet=None if beside_s is None else median(map(sum, times)) / beside_s,
    )


def coder(name: str, dim: int, device: str) -> Product | Baseline:
    """Return the codec of that name, for vectors (dim,). Raises ConfigError: there is none."""
    selection, plus, quantized = name.partition("+")
    kind, colon, text = selection.partition(":")
    try:
        ratio = float(text) if colon else None
    except ValueError:
        plus = ""
    if not plus:
        raise ConfigError(f"--codec: must be SELECTOR[:RATIO]+QUANTIZER, got {name!r}; try `--codec mask:0.1+int4`")
    if kind == BASELINE:
        return Baseline(max(1, math.ceil((1.0 if ratio is None else ratio) * dim)))
    try:
        selector = SELECTORS.build("codec", kind, {} if ratio is None else {"ratio": ratio})
        return Product(selector, quantizer(quantized, torch.float32), dim, device)
    except ConfigError as error:
        raise ConfigError(f"--codec {name}: {error}") from error


def entropy_bits(dim: int, k: int) -> float:
    """Return log2 C(d, k)."""
    return (math.lgamma(dim + 1) - math.lgamma(k + 1) - math.lgamma(dim - k + 1)) / math.log(2)


def peak_extra(device: str, run: Callable[[], Result]) -> tuple[int | None, Result]:
    """Return the additional bytes at the peak of a call, None if neither CUDA nor Linux reports them, and its result."""
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
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # memory that was freed and kept would not be counted when it is used again
        trim(0)
    reset.write_text(_RESET_PEAK)
    before = _status("VmRSS")
    result = run()
    return _status("VmHWM") - before, result


def _round_trip(timed: Product | Baseline, x: Tensor, seq: int) -> tuple[float, float]:
    """Return the seconds to encode and to decode."""
    encode_s, data = _timed(x.device.type, lambda: timed.encode(x, seq))
    return encode_s, _timed(x.device.type, lambda: timed.decode(data))[0]


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _timed(device: str, run: Callable[[], Result]) -> tuple[float, Result]:
    """Return the seconds, and the result."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    result = run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, result


def main() -> int:
    """Measure what the arguments say; exit code 2 where that is refused."""
    name, dim, repeat, device, threads, beside = sys.argv[1:]
    torch.set_num_threads(int(threads))
    return answer(lambda: measure(name, int(dim), int(repeat), devices.device(device), int(beside)))


if __name__ == "__main__":
    sys.exit(main())
