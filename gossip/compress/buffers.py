"""Memory for large vectors. Most of what a copy of one costs is the kernel handing out fresh pages one by one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from starling.gossip.lazy_torch import Tensor, torch


def empty(count: int, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """(count,) of anything, float32 unless another dtype is given.

    On the CPU from numpy, which asks for huge pages where the system lets it: to fill 400 MB takes a quarter of the time.
    """
    dtype = dtype or torch.float32
    if device.type == "cpu" and count:
        return torch.from_numpy(np.empty(count * dtype.itemsize, np.uint8)).view(dtype)
    return torch.empty(count, dtype=dtype, device=device)


def view(data: bytes | memoryview) -> npt.NDArray[np.uint8]:
    """The bytes as an array that shares their memory, read-only."""
    return np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
