"""The fixed parts of a payload as bytes: headers of the support, the values and the requested coordinates. Torch-free.

    header   version u8 · kind u8 · quantizer code u8 · dim u64
    blocks   seed u64 · start u32 · count u32 · block u16
    listing  count u32 · length of the coded indices in bytes u32
    atoms    chunk u16
    factors  side u8
    fragment part u16 · parts u16
    trailer  number f64 · length of the values before it u32

All little-endian. Kinds are never reused; the version is raised only when an old reader would misread.
"""

import struct
from enum import IntEnum

VERSION = 1
BLOCK = 64  # coordinates that a seeded mask moves together
HEADER = struct.Struct("<BBBQ")
BLOCKS = struct.Struct("<QIIH")
LISTING = struct.Struct("<II")
ATOMS = struct.Struct("<H")
FACTORS = struct.Struct("<B")
FRAGMENT = struct.Struct("<HH")
TRAILER = struct.Struct("<dI")


class Kind(IntEnum):
    """The kind of content that follows the header."""

    IMPLIED = 0  # values alone: the reader knows the support from the request
    FULL = 1
    BLOCKS = 2
    INDICES = 3
    IMPLIED_AND_WISH = 4
    ATOMS = 5
    FACTORS = 6
    FRAGMENT = 7
