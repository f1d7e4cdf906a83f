"""Cryptographically secure random numbers: a keystream seeded from the operating system.

Noise drawn from the swarm's shared seed could be drawn again by every member and subtracted. The generators of numerical libraries reveal
their state to anyone who sees enough of their output, or have 32-bit seeds; here the bits come from AES-256 in counter mode.

Shapes: n numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

Entropy = Callable[[int], bytes]
"""n -> n bytes that are hard to guess, as `os.urandom` gives them."""
_KEY_BYTES = 32
_PIECE = 1 << 18  # numbers drawn at a time: 2 MB of each intermediate


class Csprng:
    """A stream of secret numbers.

    Args:
        entropy: asked once, for the key. Tests give their own, to see the same numbers again.
    """

    def __init__(self, entropy: Entropy) -> None:
        self._stream = Cipher(algorithms.AES(entropy(_KEY_BYTES)), modes.CTR(bytes(16))).encryptor()

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """(count,) in (0, 1), multiples of 2⁻⁵³ moved by half of one."""
        words = np.frombuffer(self._stream.update(bytes(8 * count)), np.uint64)
        return np.asarray(((words >> np.uint64(11)) + 0.5) * 2.0**-53, np.float64)

    def noised(self, x: Tensor, deviation: float) -> Tensor:
        """X (n,) with independent Gaussian noise of that standard deviation on every number -> a new (n,).

        Drawn and added in double precision, whatever x is in. Source: Box and Muller 1958.
        """
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
