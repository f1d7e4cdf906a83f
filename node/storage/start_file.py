"""The file of the model that a swarm of scripts begins with, in a run directory: checked, copied, received. All functions block.

No file is trusted: a chunk of it counts if it has the digest that the manifest's root stands for.
"""

import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from starling.gossip.chunks import digests_of, root
from starling.gossip.errors import ConfigError
from starling.gossip.wire.schema import MAX_CHUNK_BYTES
from starling.node import platform
from starling.node.config import initial_model
from starling.node.config.initial_model import Chunked
from starling.node.storage import private


def listed(path: Path, wanted: Chunked) -> bytes | None:
    """Return the digests of the chunks of `path`, if it is that file; None: it is missing, unreadable or another one."""
    try:
        if path.stat().st_size != wanted.size:
            return None
        found = digests_of(initial_model.pieces(path))
    except OSError:
        return None
    return found if root(found) == wanted.root else None


def keep(source: Path, target: Path, wanted: Chunked) -> bytes:
    """Copy a file that a person gave, unless `target` is it already -> the digests of its chunks.

    Raises ConfigError: it cannot be read or copied, or is another file than `wanted`.
    """
    if (found := listed(target, wanted)) is not None:
        return found
    initial_model.verify(str(wanted), str(source))
    try:
        _write(target, initial_model.pieces(source))
    except OSError as error:
        raise ConfigError(f"start: {source} cannot be copied to {target}: {error.strerror}; look with `df -h`") from error
    if (found := listed(target, wanted)) is None:
        raise ConfigError(f"start: {source} was changed while it was copied to {target}; try again")
    return found


def chunk(path: Path, offset: int) -> bytes:
    """Return the bytes of the chunk that begins there; b"" where none does, or it cannot be read."""
    if offset % MAX_CHUNK_BYTES:
        return b""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(MAX_CHUNK_BYTES)
    except OSError:
        return b""


class Received:
    """A file of `size` bytes > 0 that is received next to its path `target`, chunk by chunk in any order, and mapped into memory.

    What an earlier run received of it, or has of it in a damaged `target`, is where it was.

    Attributes:
        pages: its bytes.
        begun: they may hold something already.

    Raises OSError: it cannot be made, or the disk has not so much space.
    """

    def __init__(self, target: Path, size: int) -> None:
        self._target, self._part = target, target.with_name("start.part")
        if target.exists() and not target.is_symlink() and not self._part.exists():
            target.replace(self._part)
        descriptor = private.keep(self._part, os.O_RDWR)
        try:
            self.begun = os.fstat(descriptor).st_size > 0
            os.ftruncate(descriptor, min(size, os.fstat(descriptor).st_size))
            platform.allocate(descriptor, size)
            self.pages = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    def chunks(self) -> Iterator[tuple[int, bytes]]:
        """Yield index and bytes of every chunk as the file has it."""
        for at in range(0, len(self.pages), MAX_CHUNK_BYTES):
            yield at // MAX_CHUNK_BYTES, self.pages[at : at + MAX_CHUNK_BYTES]

    def release(self) -> None:
        """Let go of the pages that were written; they stay in the file."""
        platform.drop_pages(self.pages)

    def finish(self) -> None:
        """Put the file, which is whole, in its place. Raises OSError."""
        self.pages.flush()
        self._part.replace(self._target)

    def discard(self) -> None:
        """Delete what was received."""
        self._part.unlink(missing_ok=True)


def _write(target: Path, parts: Iterable[bytes]) -> None:
    """Write a file of mode 0600 in one step, a part at a time. Raises OSError: none is left then."""
    beside = target.with_name(f".{target.name}.copying")
    try:
        with open(private.create(beside), "wb") as file:  # noqa: PTH123 — a descriptor
            file.writelines(parts)
        beside.replace(target)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
