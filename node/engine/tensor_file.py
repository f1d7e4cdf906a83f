"""Named tensors and a few facts in the safetensors format, with the facts and a SHA-256 in its JSON header.

Used for checkpoints on disk and snapshots for peers. Any safetensors reader opens them. Equal contents give equal bytes. Files are written
from the tensors and read as pages of the file: a checkpoint of a large model is never in memory a second time.
"""

import hashlib
import json
import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from starling.node import platform
from starling.node.storage import private
from starling.node.versions import CHECKPOINT, unreadable

FORMAT = CHECKPOINT.newest
_KEY = "starling"  # a single header entry, as the library does not fix the order of several
_LENGTH_BYTES = 8
_ALIGNED = 8
_MAX_HEADER_BYTES = 64 << 20
_NAMES: Mapping[torch.dtype, str] = MappingProxyType(
    {
        torch.float64: "F64",
        torch.float32: "F32",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.complex64: "C64",
        torch.int64: "I64",
        torch.int32: "I32",
        torch.int16: "I16",
        torch.int8: "I8",
        torch.uint8: "U8",
        torch.bool: "BOOL",
        torch.uint64: "U64",
        torch.uint32: "U32",
        torch.uint16: "U16",
        torch.float8_e4m3fn: "F8_E4M3",
        torch.float8_e5m2: "F8_E5M2",
    }
)
"""Names of dtypes in the format."""
_DTYPES: Mapping[str, torch.dtype] = MappingProxyType({name: dtype for dtype, name in _NAMES.items()})
_STRETCH = 16 << 20  # bytes of a file read before their pages are released
_NO_TENSORS = (ValueError, KeyError, TypeError, RuntimeError, safetensors.SafetensorError)


class Pages(dict[str, Tensor]):
    """Read-only tensors that are mapped from a file, private to this process."""

    def __init__(self, pages: mmap.mmap) -> None:
        super().__init__()
        self._pages = pages

    def release(self) -> None:
        """Release the pages from memory until they are read again."""
        platform.drop_pages(self._pages)


def release(tensors: Mapping[str, Tensor]) -> None:
    """Release those tensors from memory that are mapped from a file."""
    if isinstance(tensors, Pages):
        tensors.release()


def pack(tensors: Mapping[str, Tensor], facts: Mapping[str, str | int]) -> bytes:
    """Return the bytes of a file with tensors of any shape and dtype, and facts."""
    packed, header = _packed(tensors, facts)
    data: bytes = safetensors.torch.save(packed, metadata=header)
    return data


def _packed(tensors: Mapping[str, Tensor], facts: Mapping[str, str | int]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors in the order of the file, and its metadata."""
    packed = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"format": FORMAT, "facts": dict(facts), "sha256": _checksum(packed, facts)}
    return packed, {_KEY: json.dumps(header, sort_keys=True)}


def tensors(data: bytes) -> dict[str, Tensor]:
    """Return the tensors of any safetensors file, on the CPU. Raises ValueError with a short message: it is none."""
    try:
        return safetensors.torch.load(data)
    except _NO_TENSORS as error:
        raise ValueError("is no safetensors file, or cut short") from error


def unpack(data: bytes | bytearray) -> tuple[dict[str, Tensor], dict[str, str | int]]:
    """Return tensors on the CPU, and facts. Raises ValueError with a short message: no such file, of another format, or damaged."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    return _verified(lambda: data[_LENGTH_BYTES : _LENGTH_BYTES + length], lambda: safetensors.torch.load(bytes(data)))


def load(path: Path) -> tuple[Pages, dict[str, str | int]]:
    """Read tensors and facts from a file like `unpack`, memory-mapped: replace the file by renaming only. Raises OSError too: it cannot be
    read.
    """
    with path.open("rb") as file:
        length = min(int.from_bytes(file.read(_LENGTH_BYTES), "little"), _MAX_HEADER_BYTES)
        header = file.read(length)
        return _verified(lambda: header, lambda: _mapped(file.fileno(), header))


def _mapped(file: int, header: bytes) -> Pages:
    """Map the tensors of a file. Raises any of _NO_TENSORS: the header describes what is not there."""
    pages = mmap.mmap(file, 0, access=mmap.ACCESS_COPY)
    found, begin = Pages(pages), _LENGTH_BYTES + len(header)
    for name, form in json.loads(header).items():
        if name == "__metadata__":
            continue
        dtype, shape, (first, last) = _DTYPES[form["dtype"]], form["shape"], form["data_offsets"]
        count = math.prod(shape)
        if min(first, *shape, 0) < 0 or last - first != count * dtype.itemsize or begin + last > len(pages):
            raise ValueError("a tensor that is not there")
        flat = torch.frombuffer(pages, dtype=dtype, count=count, offset=begin + first) if count else torch.empty(0, dtype=dtype)
        found[name] = flat.view(shape)
    return found


Found = TypeVar("Found", bound=dict[str, Tensor])


def _verified(header: Callable[[], bytes | bytearray], read: Callable[[], Found]) -> tuple[Found, dict[str, str | int]]:
    try:
        ours = json.loads(json.loads(header())["__metadata__"][_KEY])
        version, facts, checksum = ours["format"], ours["facts"], ours["sha256"]
        found = read()
    except _NO_TENSORS as error:
        raise ValueError("cut short, or not written by Starling") from error
    if version not in CHECKPOINT:
        raise ValueError(unreadable("a file", version, CHECKPOINT, "export it with the version that wrote it"))
    if not isinstance(facts, dict) or checksum != _checksum(found, facts):
        raise ValueError("damaged: its checksum does not match")
    return found, facts


def facts(path: Path) -> dict[str, str | int]:
    """Return the facts of a file, without its tensors, whose checksum is not verified. Raises OSError, or ValueError if it is no such
    file.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            header = json.loads(json.loads(file.read(min(length, _MAX_HEADER_BYTES)))["__metadata__"][_KEY])
        found: dict[str, str | int] = dict(header["facts"])
    except _NO_TENSORS as error:
        raise ValueError("cut short, or not written by Starling") from error
    return found


def write(path: Path, data: bytes) -> Path:
    """Write next to `path`, mode 0600, and flush to the disk -> the temporary file, ready to be renamed to `path`.

    Raises OSError: no space, no permission, no such folder. No temporary file is left then.
    """
    return _written(path, [data])


def save(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, str | int]) -> Path:
    """Write tensors and facts like `write`: the contents of `pack`, but tensors may be in another order. They are not copied."""
    return _written(path, pieces(tensors, facts))


def _written(path: Path, pieces: Iterable[bytes | memoryview]) -> Path:
    temporary = path.with_name(f".{path.name}.writing")
    try:
        with open(private.create(temporary), "wb") as file:  # noqa: PTH123 - a descriptor
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _pieces(packed: Mapping[str, Tensor], header: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Yield a safetensors file: length of a JSON header, the header, and the tensors, the widest numbers first so that all are aligned.

    The library would make all of it in memory first, or leave a file of its own behind when it is killed.
    """
    described: dict[str, object] = {"__metadata__": dict(header)}
    order, end = sorted(packed, key=lambda name: (-packed[name].itemsize, name)), 0
    for name in order:
        begin, end = end, end + packed[name].nbytes
        shape = list(packed[name].shape)
        described[name] = {"dtype": _NAMES[packed[name].dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    yield len(text).to_bytes(_LENGTH_BYTES, "little") + text
    for name in order:
        yield _raw(packed[name])


def copy(source: Path, target: Path) -> Path:
    """Write the bytes of another file like `write`, in pieces."""
    with source.open("rb") as file:
        return _written(target, iter(lambda: file.read(_STRETCH), b""))


def pieces(tensors: Mapping[str, Tensor], facts: Mapping[str, str | int]) -> Iterator[bytes | memoryview]:
    """Return the bytes that `save` writes; tensors are not copied."""
    return _pieces(*_packed(tensors, facts))


def flush_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(tensors: Mapping[str, Tensor], facts: Mapping[str, str | int]) -> str:
    digest = hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        raw = _raw(tensor)
        for start in range(0, len(raw), _STRETCH):
            digest.update(raw[start : start + _STRETCH])
            release(tensors)
    return digest.hexdigest()


def _raw(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU, not copied; little-endian, as this machine is."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
