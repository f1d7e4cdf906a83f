"""A partly received model in a file: after a restart only the rest is fetched.

The file is not trusted: a chunk of it counts if it has the digest that members agree on now (`starling.gossip.chunks`).
"""

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from starling.gossip.wire.schema import MAX_CHUNK_BYTES
from starling.node import platform
from starling.node.storage import private

_BEGIN, _END = "model-", ".part"


class Partial:
    """A file with the chunks of one state in their places; all methods block and raise OSError."""

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._size = path, size
        self._file = private.keep(path, os.O_RDWR)
        os.ftruncate(self._file, size)  # truncate: bytes beyond the state belong to an earlier, longer one

    def chunks(self) -> Iterator[tuple[int, bytes]]:
        """Yield index and bytes of every chunk in the file."""
        for at in range(0, self._size, MAX_CHUNK_BYTES):
            yield at // MAX_CHUNK_BYTES, platform.read_at(self._file, min(MAX_CHUNK_BYTES, self._size - at), at)

    def write(self, index: int, data: bytes) -> None:
        """Write a chunk to the file."""
        platform.write_at(self._file, data, index * MAX_CHUNK_BYTES)

    def close(self, *, finished: bool) -> None:
        """Keep the file for the next start, or delete it."""
        os.close(self._file)
        if finished:
            with suppress(FileNotFoundError):
                self._path.unlink()


class ModelFile:
    """A new file of `size` bytes > 0 in a folder for a model that is received, mapped into memory.

    Raises OSError: it cannot be made, or the disk has not so much space.
    """

    @staticmethod
    def clear(folder: Path) -> None:
        """Delete files that a killed node left."""
        for path in folder.glob(f"{_BEGIN}*{_END}"):
            path.unlink(missing_ok=True)

    def __init__(self, folder: Path, size: int) -> None:
        descriptor, name = tempfile.mkstemp(prefix=_BEGIN, suffix=_END, dir=folder)  # of mode 0600
        self.path = Path(name)
        try:
            platform.allocate(descriptor, size)
            self.pages = mmap.mmap(descriptor, size)
        except OSError:
            self.delete()
            raise
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """Release the written pages from memory; they stay in the file."""
        platform.drop_pages(self.pages)

    def delete(self) -> None:
        """Delete the file, which is no longer needed."""
        self.path.unlink(missing_ok=True)
