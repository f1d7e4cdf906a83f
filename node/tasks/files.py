"""Arrays from files on disk, parsed strictly: sizes are checked before memory is allocated, and nothing is ever unpickled.

Formats: IDX as MNIST uses it (http://yann.lecun.com/exdb/mnist: magic 0 0 type rank, big-endian sizes, data), plain or
gzipped, and NumPy's .npz (a zip of .npy files, NEP 1).
"""

import gzip
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from starling.node.tasks.api import DataError

MAX_BYTES = 4 << 30  # largest array read, uncompressed: a file that claims more is refused before anything is allocated

BAD_FILE = (OSError, EOFError, ValueError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)
"""What gzip, zipfile and NumPy raise on damaged, truncated, encrypted or foreign files."""

IDX_UINT8 = 0x08
_PIECE_BYTES = 1 << 20

MAX_HEADER_BYTES = 4096

NPY_HEADER = re.compile(rb"\{'descr': '([<>|][uifUS]\d{1,4})', 'fortran_order': (True|False), 'shape': \(([\d, ]{0,200})\), \}\s*")
"""What `np.save` writes before integers, floats and strings; objects have no such header."""


def read_idx(path: Path, rank: int) -> NDArray[np.uint8]:
    """Read one IDX file of unsigned bytes with `rank` dimensions, gzipped if its name ends in .gz.

    Raises DataError if the file is missing, or differs from its header.
    """
    with _reading(path, "IDX"), gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        return _idx(file, rank)


def _idx(file: IO[bytes] | gzip.GzipFile, rank: int) -> NDArray[np.uint8]:
    zero, kind, dims = struct.unpack(">HBB", file.read(4))
    if (zero, kind, dims) != (0, IDX_UINT8, rank):
        raise ValueError(f"magic must be 0000{IDX_UINT8:02x}{rank:02x}, got {zero:04x}{kind:02x}{dims:02x}")
    shape = struct.unpack(f">{rank}I", file.read(4 * rank))
    size = math.prod(shape)
    if not 0 < size <= MAX_BYTES:
        raise ValueError(f"its header says {size} bytes, allowed are 1 to {MAX_BYTES}")
    data = bytearray()
    while len(data) < size and (piece := file.read(min(size - len(data), _PIECE_BYTES))):  # allocates only for bytes that exist
        data += piece
    if len(data) != size or file.read(1):
        raise ValueError(f"its header says {size} bytes of data, it has {'more' if len(data) == size else len(data)}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def read_npz(path: Path, needed: Collection[str], optional: Collection[str] = ()) -> dict[str, NDArray[Any]]:
    """Read arrays of an .npz file by name; only those in `needed` or `optional`.

    Raises DataError if the file is missing or damaged, lacks a name, or has objects instead of numbers or strings.
    """
    with _reading(path, ".npz"), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if missing := sorted(name for name in needed if f"{name}.npy" not in names):
            raise DataError(f"{path}: has no array {missing[0]!r}, needed are {', '.join(sorted(needed))}")
        present = [name for name in (*needed, *optional) if f"{name}.npy" in names]
        return {name: _npy(archive, archive.getinfo(f"{name}.npy")) for name in present}


def names_in_npz(path: Path) -> frozenset[str]:
    """Names of the arrays in an .npz file; DataError if it is missing or damaged."""
    with _reading(path, ".npz"), zipfile.ZipFile(path) as archive:
        return frozenset(name.removesuffix(".npy") for name in archive.namelist())


@contextmanager
def _reading(path: Path, form: str) -> Iterator[None]:
    try:
        yield
    except BAD_FILE as error:
        raise DataError(f"{path}: not a readable {form} file: {error}") from error


def _npy(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """`np.load` would evaluate the header and allocate what it claims; here header and zip directory must agree first."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{info.filename} is compressed by a method that NumPy does not use")
    with archive.open(info) as file:
        magic, major = struct.unpack("<6sBx", file.read(8))
        length = struct.unpack("<H", file.read(2))[0] if major == 1 else struct.unpack("<I", file.read(4))[0]
        if magic != b"\x93NUMPY" or major not in (1, 2, 3) or length > MAX_HEADER_BYTES:
            raise ValueError(f"{info.filename} is not in the .npy format")
        if not (header := NPY_HEADER.fullmatch(file.read(length))):
            raise ValueError(f"{info.filename} does not hold plain numbers or strings")
        kind, fortran, dims = (group.decode() for group in header.groups())
        dtype = np.dtype(kind)
        shape = tuple(int(dim) for dim in dims.replace(",", " ").split())
        size = math.prod(shape) * dtype.itemsize
        if not size:
            raise ValueError(f"{info.filename} holds nothing, its shape is {shape}")
        if not 0 < size <= MAX_BYTES or size != info.file_size - file.tell():
            raise ValueError(f"{info.filename} claims shape {shape}, which does not fit its {info.file_size} bytes")
        return np.frombuffer(file.read(size), dtype).reshape(shape, order="F" if fortran == "True" else "C")
