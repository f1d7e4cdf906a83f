"""The step of a bucket: a bfloat16.

Unlike an fp16 scale it spans all of float32's range (a nearly converged swarm exchanges differences far below fp16's 6e-8), at most 0.8 %
wider than wanted, and its product with a number of 8 significant bits is exact in float32.

Shapes: m buckets.
"""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ROUNDING = 2.0**-7  # relative excess of a rounded step
_SMALLEST = 2.0**-126  # bfloat16's least normal: no decoded value depends on how a device treats subnormals
_LARGEST = 2.0**120


def bounds(least: float, largest: float) -> tuple[float, float]:
    """Return the least and the largest step of a grid whose numbers go from `least`, a power of two, to `largest`: each product is 0,
    or normal and finite.
    """
    return _SMALLEST / min(1.0, least), min(_LARGEST, 2.0 ** (126 - math.floor(math.log2(largest))))


def least_steps(measured: Tensor, least: float, largest: float) -> tuple[Tensor, Tensor]:
    """Steps (m,) float32 of t = `measured` (m,) float32, finite, and what to divide by.

    The least bfloat16 s with largest·s >= t, within the `bounds`, and 0 where t is negligible; then the same, but infinity for 0: the ratio
    is 0.
    """
    smallest, limit = bounds(least, largest)
    wanted = measured / largest
    raised = (wanted.view(torch.int32) + 0xFFFF).bitwise_and_(~0xFFFF)
    short = raised.view(torch.float32) * largest < measured  # the division may have gone down; this product is exact
    steps = raised.add_(short, alpha=0x10000).view(torch.float32).clamp_(max=limit)
    negligible = wanted < smallest
    return steps.masked_fill(negligible, 0.0), steps.masked_fill_(negligible, math.inf)


def to_wire(steps: Tensor) -> Tensor:
    """Map (m,) float32 -> (m,) int16, the bits of the bfloat16."""
    return (steps.view(torch.int32) >> 16).to(torch.int16)


def from_wire(raw: npt.NDArray[np.uint8], least: float, largest: float, device: torch.device) -> Tensor:
    """Map (2m,) bytes -> (m,) float32 on `device`. Raises ValueError("bad_scale") for a step that is not 0 and out of bounds."""
    upper = raw.view("<u2")
    smallest, limit = (int(np.float32(bound).view(np.uint32)) >> 16 for bound in bounds(least, largest))
    # positive floats are ordered like their bits; infinity, NaN and all with a sign come after them
    if not ((upper == 0) | ((upper >= smallest) & (upper <= limit))).all():
        raise ValueError("bad_scale")
    return torch.from_numpy((upper.astype(np.uint32) << 16).view(np.float32)).to(device)
