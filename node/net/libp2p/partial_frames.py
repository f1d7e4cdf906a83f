"""Incomplete frames: all of a host's share one bound on memory, those of unknown peers a smaller one.

A frame is assembled as its bytes arrive, so an announced length takes no memory. When a bound is reached, the stream that holds most is
reset.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starling.gossip.wire.schema import MAX_FRAME_BYTES
from starling.node.net.libp2p.receive_buffer import ReceiveBuffer
from starling.node.net.libp2p.streams import Stream, StreamBroken

MAX_UNFINISHED_BYTES = 2 * max(MAX_FRAME_BYTES.values())
LEAST_UNFINISHED_BYTES = 64 << 20  # least memory for unfinished frames, even where frames are short: a few windows
MAX_STRANGE_BYTES = 8 << 20
HEADER_BYTES = 4


@dataclass(slots=True, eq=False)
class Assembly:
    """The frame, or its header, that is being received on one stream."""

    stream: Stream
    known: Callable[[], bool]
    strange: bool = False
    frame: ReceiveBuffer = field(default_factory=lambda: ReceiveBuffer(HEADER_BYTES))  # or its header
    paused: int = 0  # bytes that may arrive while the stream is not read

    @property
    def held(self) -> int:
        return self.frame.filled + self.paused


@dataclass(slots=True)
class PartialFrames:
    """The memory of all incomplete inbound frames; beyond a limit the stream that holds most is reset."""

    limit: int = MAX_UNFINISHED_BYTES  # most bytes
    strange_limit: int = MAX_STRANGE_BYTES  # most bytes held for unknown peers
    held: int = 0
    strange: int = 0  # bytes of `held` that belong to unknown peers
    _assemblies: list[Assembly] = field(default_factory=list)

    @property
    def streams(self) -> int:
        """Return the number of streams that are read."""
        return len(self._assemblies)

    def begin(self, stream: Stream, known: Callable[[], bool]) -> Assembly:
        """Start assembling frames of a stream; `known` says at the beginning of each whether its peer is known."""
        assembly = Assembly(stream, known)
        self._assemblies.append(assembly)
        return assembly

    def of(self, peer: str) -> bool:
        """Tell if there is an incomplete frame of `peer`."""
        return any(each.frame.filled and each.stream.connection.info.peer == peer for each in self._assemblies)

    def extend(self, assembly: Assembly, data: memoryview) -> None:
        """Add received bytes to a frame."""
        if not assembly.frame.filled:
            assembly.strange = not assembly.known()
        assembly.frame.add(data)
        self._count(assembly, len(data))
        self._limit()

    @contextmanager
    def paused(self, assembly: Assembly) -> Iterator[None]:
        """Count a stream's whole window while it is not read. Raises StreamBroken: that was too much, or the peer reset it."""
        assembly.paused = assembly.stream.window
        self._count(assembly, assembly.paused)
        self._limit()
        try:
            yield
        finally:
            self._resume(assembly)
        if assembly.stream.broken:
            raise StreamBroken

    def _resume(self, assembly: Assembly) -> None:
        self._count(assembly, -assembly.paused)
        assembly.paused = 0

    def clear(self, assembly: Assembly, wanted: int = HEADER_BYTES) -> memoryview:
        """Release the memory of a frame that is complete or given up, and expect `wanted` bytes next."""
        self._count(assembly, -assembly.frame.filled)
        frame, assembly.frame = assembly.frame, ReceiveBuffer(wanted)
        return frame.whole()

    def end(self, assembly: Assembly) -> None:
        """Remove a stream: no more frames arrive on it."""
        self.clear(assembly)
        self._assemblies.remove(assembly)

    def _count(self, assembly: Assembly, amount: int) -> None:
        self.held += amount
        self.strange += amount if assembly.strange else 0

    def _limit(self) -> None:
        while self.strange > self.strange_limit:
            self._give_up(each for each in self._assemblies if each.strange)
        while self.held > self.limit:
            self._give_up(self._assemblies)

    def _give_up(self, some: Iterable[Assembly]) -> None:
        largest = max(some, key=lambda each: each.held)
        self._resume(largest)
        self.clear(largest)
        largest.stream.reset()
