"""Numbers between −1/2 and 1/2 from one random word: rounding x + u to nearest is unbiased random rounding of x.

A torch generator on the CPU takes 2 ns a number, more than the rest of a quantizer. So a generator gives one 62-bit word, and word and
position give all numbers of a vector: splitmix64 of the word, counted on, and four 16-bit numbers from each of its outputs.
The same on every device, for any part of a vector, and for many vectors at once.

The numbers are (odd integer)/65536, symmetric, never ±1/2: a whole number is never rounded away, and the expectation is met up to 2**−16.

Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators" (splitmix64).

Shapes: r buckets of B values.
"""

import torch
from torch import Generator, Tensor

_GAMMA = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_ODD = 0x0001000100010001
UNIT = 2.0**-16


def draw(generator: Generator, device: torch.device) -> Tensor:
    """Return (1,) int64, on `device`: the random word of one vector."""
    return torch.randint(2**62, (1,), generator=generator, device=generator.device).to(device)


def dither(words: Tensor, bucket: Tensor, z: Tensor, t: Tensor) -> Tensor:
    """Return (r, B) int16: the numbers of some buckets, times 65536; it shares the memory of z.

    `words` (r,) int64, or (1,) for all, is the word of chance of each bucket's vector, `bucket` (r,) int64 its number there; z and t (r,
    B/4) int64 are to work in.
    """
    per_bucket = z.shape[1]
    lane = torch.arange(1, per_bucket + 1, device=z.device) * _int64(_GAMMA)
    torch.add((words + bucket * _int64(per_bucket * _GAMMA)).unsqueeze(1), lane, out=z)
    for shift, factor in _MIX:
        _shift(z, shift, t)
        z ^= t
        z *= _int64(factor)
    _shift(z, _LAST_SHIFT, t)
    z ^= t
    z |= _ODD
    return z.view(torch.int16)


def _shift(z: Tensor, shift: int, out: Tensor) -> None:
    """Write z >> shift with zeros shifted in."""
    torch.bitwise_right_shift(z, shift, out=out)
    out &= (1 << (64 - shift)) - 1


def _int64(number: int) -> int:
    """Return the number modulo 2**64, as torch's int64."""
    return (number + 2**63) % 2**64 - 2**63
