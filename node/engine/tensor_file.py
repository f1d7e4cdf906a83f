"""Named tensors and a few facts in the safetensors format, with the facts and a SHA-256 in its JSON header.

Used for checkpoints on disk and snapshots for peers. Any safetensors reader opens them. Equal contents give equal bytes.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from starling.node.storage import private
from starling.node.versions import CHECKPOINT, unreadable

FORMAT = CHECKPOINT.newest
_KEY = "starling"  # one header entry, as the library does not fix the order of several
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 64 << 20
_NO_TENSORS = (ValueError, KeyError, TypeError, RuntimeError, safetensors.SafetensorError)


def pack(tensors: Mapping[str, Tensor], facts: Mapping[str, str | int]) -> bytes:
    """The bytes of a file with tensors of any shape and dtype, and facts."""
    packed = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"format": FORMAT, "facts": dict(facts), "sha256": _checksum(packed, facts)}
    data: bytes = safetensors.torch.save(packed, metadata={_KEY: json.dumps(header, sort_keys=True)})
    return data


def tensors(data: bytes) -> dict[str, Tensor]:
    """Tensors of any safetensors file, on the CPU. Raises ValueError if it is none, as a short message says."""
    try:
        return safetensors.torch.load(data)
    except _NO_TENSORS as error:
        raise ValueError("is no safetensors file, or cut short") from error


def unpack(data: bytes) -> tuple[dict[str, Tensor], dict[str, str | int]]:
    """Tensors on the CPU, and facts. Raises ValueError if it is no such file, of another format, or damaged, as a short message says."""
    try:
        length = int.from_bytes(data[:_LENGTH_BYTES], "little")
        header = json.loads(json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length])["__metadata__"][_KEY])
        version, facts, checksum = header["format"], header["facts"], header["sha256"]
        found = safetensors.torch.load(data)
    except _NO_TENSORS as error:
        raise ValueError("cut short, or not written by Starling") from error
    if version not in CHECKPOINT:
        raise ValueError(unreadable("a file", version, CHECKPOINT, "export it with the version that wrote it"))
    if not isinstance(facts, dict) or checksum != _checksum(found, facts):
        raise ValueError("damaged: its checksum does not match")
    return found, facts


def facts(path: Path) -> dict[str, str | int]:
    """The facts of a file, without its tensors, whose checksum is not verified. Raises OSError, or ValueError if it is no such file."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            header = json.loads(json.loads(file.read(min(length, _MAX_HEADER_BYTES)))["__metadata__"][_KEY])
        found: dict[str, str | int] = dict(header["facts"])
    except _NO_TENSORS as error:
        raise ValueError("cut short, or not written by Starling") from error
    return found


def write(path: Path, data: bytes) -> Path:
    """Write beside `path`, mode 0600, and flush to the disk -> the temporary file, ready to be renamed to `path`.

    Raises OSError: no space, no permission, no such folder. No temporary file is left then.
    """
    temporary = path.with_name(f".{path.name}.writing")
    try:
        with open(private.create(temporary), "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def flush_folder(folder: Path) -> None:
    """Make renames in `folder` last through a power cut."""
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
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
