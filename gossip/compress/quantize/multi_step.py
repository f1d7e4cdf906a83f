"""Several quantization steps in one message: each quantizes the error that those before it left.

Shapes: k values.
"""

from typing import Annotated

import torch
from msgspec import Meta
from torch import Generator, Tensor

from starling.gossip.bounds import parameters
from starling.gossip.compress.quantize.buckets import Bucketed

_CODES_PER_STEP = 32
_LARGEST = torch.finfo(torch.float32).max


@parameters
class MultiStep:
    """v_1 = Q(x), v_r = v_(r−1) + Q(x − v_(r−1)): relative squared error ω^R for R times the bytes.

    Source: NEOLITHIC, Huang et al. 2022, Algorithm 2 (arXiv:2206.03665). Deviation: of the values of an exchange only, whose coordinates
    are chosen once: several steps of top-k are one larger top-k.
    """

    quantizer: Bucketed  # Q, omega < 1
    steps: Annotated[int, Meta(ge=2, le=4)]  # R, 2 to 4

    def __post_init__(self) -> None:
        if not self.quantizer.omega < 1.0:
            raise ValueError(f"quantizer must have omega < 1, got {self.quantizer.omega}")

    @property
    def code(self) -> int:
        """Return its number on the wire."""
        return self.quantizer.code + _CODES_PER_STEP * (self.steps - 1)

    @property
    def omega(self) -> float:
        """Return the bound of the relative squared error."""
        return self.quantizer.omega**self.steps

    def size(self, count: int) -> int:
        """Return the bytes of `count` values."""
        return self.steps * self.quantizer.size(count)

    def draws(self, count: int) -> int:
        """Return the random words that one row takes."""
        return self.steps * self.quantizer.draws(count)

    def encode(self, values: Tensor, generator: Generator) -> bytes:
        """Map (k,) finite -> bytes of all steps. Raises ValueError("not_finite")."""
        values, parts = values.detach(), list[bytes]()
        total = torch.zeros(values.shape, device=values.device)
        for _ in range(self.steps):
            parts.append(self.quantizer.encode(values - total, generator))
            total = _plus(total, self.quantizer.decode(parts[-1], values.numel(), values.device))
        return b"".join(parts)

    def decode(self, data: bytes | memoryview, count: int, device: torch.device | str = "cpu") -> Tensor:
        """Bytes -> (count,) float32 on `device`. Raises ValueError: as the quantizer."""
        if len(data) != self.size(count):
            raise ValueError("bad_length")
        size, total = self.quantizer.size(count), torch.zeros(count, device=device)
        for step in range(self.steps):
            total = _plus(total, self.quantizer.decode(data[step * size : (step + 1) * size], count, device))
        return total

    def through(self, values: Tensor, chance: Tensor) -> Tensor:
        """decode(encode(row)) of many rows (…, k) without the bytes, bit for bit; chance (…, draws(k)) as of `Bucketed.through`."""
        values = values.detach()
        total = torch.zeros(values.shape, device=values.device)
        for words in chance.tensor_split(self.steps, dim=-1):
            total = _plus(total, self.quantizer.through(values - total, words))
        return total


def _plus(total: Tensor, step: Tensor) -> Tensor:
    """Saturated, so that what finite steps add up to is finite."""
    return (total + step).clamp_(-_LARGEST, _LARGEST)
