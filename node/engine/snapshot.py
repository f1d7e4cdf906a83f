"""The model that late joiners read, in an unnamed file next to the checkpoint, so that it takes no memory while it is read.

The file is gone with the engine, however that ends. Where there is no folder, as in simulations, it is in memory.
"""

import io
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from torch import Tensor

from starling.gossip import chunks
from starling.gossip.mix.common_outer import GIVEN
from starling.gossip.wire.schema import MAX_CHUNK_BYTES
from starling.node.engine import tensor_file

KEPT_S = 120.0  # seconds after which unread snapshots are deleted; a late joiner on a slow line reads one chunk in a quarter of that


class Snapshot:
    """A model at the end of one round, in chunks (`starling.gossip.chunks`).

    Attributes:
        size: bytes.
        digests: of its chunks.
        root: of these.
        number: derived from the contents: a counter would restart with the engine, and name other bytes to a peer that still reads.
    """

    def __init__(self, folder: Path | None, tensors: Mapping[str, Tensor], facts: Mapping[str, str | int]) -> None:
        """Write the snapshot. Raises OSError: the disk is full."""
        self._file: IO[bytes] = io.BytesIO() if folder is None else tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by `close`
        weakref.finalize(self, self._file.close)  # closes the file if the engine is dropped
        try:
            self._file.writelines(tensor_file.pieces(tensors, facts))
            self._file.flush()
            self.size = self._file.tell()
            self._file.seek(0)
            self.digests = chunks.digests_of(iter(lambda: self._file.read(MAX_CHUNK_BYTES), b""))
        except OSError:
            self.close()
            raise
        self.root = chunks.root(self.digests)
        self.number = int.from_bytes(self.root[:7], "big")

    def read(self, offset: int, length: int) -> bytes:
        """Return at most `length` bytes from `offset` on."""
        self._file.seek(offset)
        return self._file.read(length)

    def close(self) -> None:
        """Close the snapshot's file."""
        self._file.close()


class Shelf:
    """Stores the newest `most` snapshots by name until nobody reads them, in unnamed files in `folder`; None: in memory."""

    def __init__(self, folder: Path | None, clock: Callable[[], float], most: int) -> None:
        self._folder, self._clock, self._most = folder, clock, most
        self._held: dict[str, Snapshot] = {}
        self._read_at = clock()

    def put(self, name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, str | int]) -> Snapshot:
        """Return the snapshot with that name, or take it, for which the oldest is deleted first. Raises OSError: the disk is full."""
        self._read_at = self._clock()
        if name not in self._held:
            while len(self._held) >= self._most:
                self.delete(next(iter(self._held)))
            self._held[name] = Snapshot(self._folder, tensors, facts)
        return self._held[name]

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Return at most `length` bytes of a snapshot from `offset` on; empty if it is not stored."""
        self._read_at = self._clock()
        held = next((it for it in self._held.values() if it.number == number), None)
        return b"" if held is None else held.read(offset, length)

    def delete(self, name: str) -> None:
        """Delete the snapshot with that name, if there is one."""
        if name in self._held:
            self._held.pop(name).close()

    def release_idle(self) -> None:
        """Delete the snapshots if none is read any more."""
        if self._clock() - self._read_at > KEPT_S:
            for name in (*self._held,):
                self.delete(name)


class Shelves:
    """The snapshots of one engine: one of the model, and some of outer parameters."""

    def __init__(self, folder: Path | None, clock: Callable[[], float]) -> None:
        self.models, self.outer = Shelf(folder, clock, 1), Shelf(folder, clock, GIVEN)

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Return bytes of a snapshot, as `Shelf.read` does."""
        return self.models.read(number, offset, length) or self.outer.read(number, offset, length)

    def release_idle(self) -> None:
        """Delete all that is not read any more."""
        self.models.release_idle()
        self.outer.release_idle()
