"""States of stages on their way to the previous stage, which stores them, and back to a new machine of a lost stage.

A state is sent in pieces of `piece_bytes`, the last one shorter, in order, one state at a time from a peer. Pieces out of order are
dropped until the sender's next state begins.
At most two states of one stage are stored, each no larger than the largest stage's state can be.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from starling.gossip.pipeline.meeting import KEPT
from starling.gossip.wire.schema import MAX_CHUNK_BYTES, Piece


@dataclass(slots=True)
class Copies:
    """The copies of the next stage's states that this node stores, and those that are arriving."""

    most_bytes: int
    piece_bytes: int = MAX_CHUNK_BYTES
    kept: dict[int, bytes] = field(default_factory=dict)  # by local steps
    _arriving: dict[tuple[str, int, int], bytearray] = field(default_factory=dict)  # bytes received so far, by peer, stage, step

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the local steps of the stored states, the oldest first."""
        return tuple(sorted(self.kept))

    def take(self, peer: str, piece: Piece) -> bytes | None:
        """A piece -> the whole state, when this was its last. Raises ValueError: bad_piece."""
        key = (peer, piece.stage, piece.step)
        whole = piece.offset % self.piece_bytes == 0 and len(piece.data) == min(self.piece_bytes, piece.size - piece.offset)
        if not 0 < piece.size <= self.most_bytes or not piece.data or not whole:
            raise ValueError("bad_piece")
        if piece.offset == 0:
            self._arriving = {other: data for other, data in self._arriving.items() if other[0] != peer} | {key: bytearray()}
        data = self._arriving.get(key)
        if data is None or len(data) != piece.offset:
            return None
        data += piece.data
        if len(data) < piece.size:
            return None
        return bytes(self._arriving.pop(key))

    def keep(self, step: int, state: bytes) -> None:
        """Keep a state of the stage behind, and the one before it; later ones are of steps that its crew has given up."""
        self.kept = {earlier: kept for earlier, kept in self.kept.items() if earlier < step} | {step: state}
        for old in self.steps[:-KEPT]:
            del self.kept[old]

    def clear(self) -> None:
        """The stage behind is another crew's."""
        self.kept.clear()
        self._arriving.clear()
