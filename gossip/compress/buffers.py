"""Memory for large vectors, reused because most of the cost of a copy is the kernel's allocation of fresh pages."""

from __future__ import annotations

import numpy as np

from starling.gossip.lazy_torch import Tensor, torch


def empty(count: int, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return (count,) of anything, float32 unless another dtype is given.

    On the CPU from numpy, which asks for huge pages where the system lets it: to fill 400 MB takes a quarter of the time.
    """
    dtype = dtype or torch.float32
    if device.type == "cpu" and count:
        return torch.from_numpy(np.empty(count * dtype.itemsize, np.uint8)).view(dtype)
    return torch.empty(count, dtype=dtype, device=device)
