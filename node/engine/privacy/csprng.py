"""Cryptographically secure random numbers: a keystream seeded from the operating system.

Noise from the swarm's shared seed could be subtracted by every member, and the generators of numerical libraries can be predicted from
their output or have 32-bit seeds. These bits come from AES-256 in counter mode.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

Entropy = Callable[[int], bytes]  # n -> n unpredictable bytes, as from `os.urandom`
_KEY_BYTES = 32
_PIECE = 1 << 18  # numbers drawn at a time: 2 MB of each intermediate


class Csprng:
    """A stream of numbers that cannot be predicted, with a key from `entropy`; tests give their own, to repeat the numbers."""

    def __init__(self, entropy: Entropy) -> None:
        self._stream = Cipher(algorithms.AES(entropy(_KEY_BYTES)), modes.CTR(bytes(16))).encryptor()

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """Return (count,) numbers in (0, 1), odd multiples of 2⁻⁵⁴."""
        words = np.frombuffer(self._stream.update(bytes(8 * count)), np.uint64)
        return np.asarray(((words >> np.uint64(11)) + 0.5) * 2.0**-53, np.float64)

    def noised(self, x: Tensor, deviation: float) -> Tensor:
        """Return a copy of `x` (n,) with independent Gaussian noise, drawn and added in double precision. Source: Box and Muller 1958."""
        noised = x.detach().clone()
        for start in range(0, x.numel(), _PIECE):
            piece = noised[start : start + _PIECE]
            noise = torch.from_numpy(self._normal(piece.numel())).mul_(deviation).to(x.device)
            piece.copy_(piece.double() + noise)
        return noised

    def _normal(self, count: int) -> npt.NDArray[np.float64]:
        half = -(-count // 2)
        radius, angle = np.sqrt(-2.0 * np.log(self.uniform(half))), 2.0 * math.pi * self.uniform(half)
        return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count]
