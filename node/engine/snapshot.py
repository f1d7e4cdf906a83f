"""The model that late joiners read, in an unnamed file next to the checkpoint, so that it takes no memory while it is read.

The file is gone with the engine, however that ends. Where there is no folder, as in simulations, it is in memory.
"""

import io
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from torch import Tensor

from starling.gossip import chunks
from starling.gossip.wire.schema import MAX_CHUNK_BYTES
from starling.node.engine import tensor_file


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
