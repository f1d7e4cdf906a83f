"""Queue of bytes to send, in order: headers, and data without a copy."""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Outgoing:
    """A queue of pieces. Data are not copied, so they must not change before they are taken."""

    size: int = 0
    _pieces: deque[bytearray | memoryview] = field(default_factory=deque)

    def add(self, data: memoryview) -> None:
        """Queue data to be sent."""
        self._pieces.append(data)
        self.size += len(data)

    def add_header(self, header: bytes) -> None:
        """Queue a few bytes, in one piece with those queued just before."""
        if not self._pieces or not isinstance(headers := self._pieces[-1], bytearray):
            self._pieces.append(headers := bytearray())
        headers += header
        self.size += len(header)

    def take(self, limit: int) -> list[bytearray | memoryview]:
        """Return up to `limit` bytes, removed from the queue, in their original pieces."""
        taken, left = [], limit
        while self._pieces and left:
            piece = self._pieces.popleft()
            if len(piece) > left:
                view = memoryview(piece)
                self._pieces.appendleft(view[left:])
                piece = view[:left]
            taken.append(piece)
            left -= len(piece)
        self.size -= limit - left
        return taken
