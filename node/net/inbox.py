"""What waits until the node gets round to it: frames, bounded per peer and handed out in turn, and connection events."""

from __future__ import annotations

from collections import deque

import trio

from starling.gossip.wire.schema import MAX_FRAME_BYTES, Lane
from starling.node.net.api import Connected, Disconnected, Inbound


class Inbox:
    """The inbound side of one lane. A noisy peer fills its own queue and delays nobody else.

    Args:
        lane: whose frames these are.
        frames: most frames of one peer that wait; the newest is dropped. All waiting frames together never exceed
            two of the largest that the lane allows.
    """

    def __init__(self, lane: Lane, frames: int) -> None:
        self._frames = frames
        self._spare_bytes = 2 * MAX_FRAME_BYTES[lane]
        self._queues: dict[str, deque[Inbound]] = {}
        self._arrived = trio.Event()
        self._sender, self.channel = trio.open_memory_channel[Inbound](0)

    def put(self, inbound: Inbound) -> bool:
        """Take a frame in, or say False: no room for it."""
        queue = self._queues.get(inbound.peer)
        waiting = 0 if queue is None else len(queue)
        if waiting >= self._frames or len(inbound.frame) > self._spare_bytes:
            return False
        if queue is None:
            queue = self._queues[inbound.peer] = deque()
        queue.append(inbound)
        self._spare_bytes -= len(inbound.frame)
        self._arrived.set()
        return True

    async def run(self) -> None:
        """Hand frames to whoever listens to `channel`, one peer after the other, until cancelled; then close it."""
        with self._sender:
            while True:
                await self._arrived.wait()
                for peer in list(self._queues):
                    queue = self._queues[peer]
                    inbound = queue.popleft()
                    if not queue:
                        del self._queues[peer]
                    self._spare_bytes += len(inbound.frame)
                    try:
                        await self._sender.send(inbound)
                    except trio.BrokenResourceError:
                        return
                if not self._queues:
                    self._arrived = trio.Event()


class EventQueue:
    """Connections coming and going. When full the oldest is dropped: the newest are nearest to the truth.

    Args:
        size: most events that wait.
    """

    def __init__(self, size: int = 1024) -> None:
        self._sender, self.channel = trio.open_memory_channel[Connected | Disconnected](size)
        self._oldest = self.channel.clone()

    def put(self, event: Connected | Disconnected) -> None:
        """Add one, whatever it takes."""
        try:
            self._sender.send_nowait(event)
        except trio.WouldBlock:
            self._oldest.receive_nowait()
            self._sender.send_nowait(event)

    def close(self) -> None:
        """Listeners get what waits, then the end of the channel."""
        self._sender.close()
        self._oldest.close()
