"""Buffer for a known number of bytes that arrive in pieces, each copied once.

A bytearray that grows moves with almost every piece, as what the pieces came in lies behind it: 1 MB costs four times as much processor
time. All of it at once would be memory for an announcement. Here what was not written to is address space and no memory.
"""

import numpy as np

RESERVED_BYTES = 1 << 20  # bytes reserved at first; then twice the size so far


class ReceiveBuffer:
    """Receives `wanted` >= 0 bytes, of which `filled` have come, in memory that grows with them."""

    __slots__ = ("_memory", "filled", "wanted")

    def __init__(self, wanted: int) -> None:
        self.wanted, self.filled = wanted, 0
        self._memory = _reserved(min(wanted, RESERVED_BYTES))

    @property
    def missing(self) -> int:
        """Return how many bytes are still to come."""
        return self.wanted - self.filled

    def add(self, data: memoryview) -> None:
        """Append received data, at most `missing` bytes."""
        begin, end = self.filled, self.filled + len(data)
        if end > len(self._memory):
            memory = _reserved(min(self.wanted, max(end, 2 * len(self._memory))))
            memory[:begin] = self._memory[:begin]
            self._memory = memory
        self._memory[begin:end] = data
        self.filled = end

    def whole(self) -> memoryview:
        """Return all bytes, once none is missing; not a copy."""
        return self._memory


def _reserved(count: int) -> memoryview:
    return np.empty(count, np.uint8).data
