"""Codes of 1 to 8 bits, side by side without gaps: eight codes are `width` bytes, the first code in the lowest bits.

Eight codes at a time lie in the eight bytes of one int64 word; neighbouring fields are pushed together in one, two or three steps, each
a shift and a mask over whole words. So the cost is a few passes over one byte a code, on any device. Little-endian machines only, which
are all that PyTorch is built for.

Shapes: r rows of codes.
"""

from functools import lru_cache

import torch
from torch import Tensor

_WHOLE = {1: torch.int64, 2: torch.int32, 4: torch.int16}  # width -> word that holds the codes of one packed byte


def pack(codes: Tensor, width: int, spare: Tensor, out: Tensor) -> None:
    """Write the lowest `width` bits, 1 to 8, of each of the codes (8·r,) int8, which are changed, into `out` (width·r,) uint8.

    All contiguous; `spare` (r,) int64 is to work in.
    """
    if width == 8:
        out.copy_(codes.view(torch.uint8))
        return
    words = codes.view(torch.int64)
    words &= _lanes(8, 0, width)
    lane, field = 8, width
    while lane < (8 * 8 // width if width in _WHOLE else 64):
        torch.bitwise_right_shift(words, lane - field, out=spare)
        spare &= _lanes(2 * lane, field, field)
        words &= _lanes(2 * lane, 0, field)
        words |= spare
        lane, field = 2 * lane, 2 * field
    if width in _WHOLE:
        out.copy_(words.view(_WHOLE[width]))  # bits above the lowest byte are 0 and dropped
    else:
        out.view(-1, width).copy_(words.view(torch.uint8).view(-1, 8)[:, :width])


def unpack(packed: Tensor, width: int, spare: Tensor, out: Tensor) -> None:
    """Read bit fields `packed` (width·r,) uint8 into `out` (8·r,) int8: codes without sign, in [0, 2**width) modulo 256.

    Arguments as of `pack`.
    """
    if width == 8:
        out.view(torch.uint8).copy_(packed)
        return
    words = out.view(torch.int64)
    if width in _WHOLE:
        out.view(_WHOLE[width]).copy_(packed)
        lane, field = 8 * 8 // width, 8
    else:
        words.zero_()
        out.view(torch.uint8).view(-1, 8)[:, :width].copy_(packed.view(-1, width))
        lane, field = 64, 8 * width
    while lane > 8:
        lane, field = lane // 2, field // 2
        torch.bitwise_left_shift(words, lane - field, out=spare)
        spare &= _lanes(2 * lane, lane, field)
        words &= _lanes(2 * lane, 0, field)
        words |= spare


@lru_cache
def _lanes(lane: int, offset: int, field: int) -> int:
    """Return the word in which each `lane` bits have ones in `field` bits from `offset`, as a signed number."""
    ones = sum(((1 << field) - 1) << offset + start for start in range(0, 64, lane))
    return ones - (1 << 64) if ones >> 63 else ones
